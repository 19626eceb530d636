"""Parse and validate a site's profile for ``paceline submit``, a TOML file. Pure."""

from __future__ import annotations

import datetime
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError, closest
from paceline.launch.plan import parsing
from paceline.launch.plan.options import Options
from paceline.launch.plan.submit_options import DIRECT, FORWARDED, OWN
from paceline.slurm import option_rules, toml_reader
from paceline.text.quoting import CONTROL

APPTAINER, SINGULARITY, PYXIS = "apptainer", "singularity", "pyxis"
RUNTIMES = (APPTAINER, SINGULARITY, PYXIS)
_NOT_IN_PROFILES = {"profile", "sbatch", "run_dir", "dry_run", "follow", "json"}
_NOT_IN_PROFILES |= {"param", "array", "again", "from"}
_NOT_IN_PROFILES |= {option.name for option in DIRECT}  # read as any other option of sbatch
_OWN = {option.name: option for option in OWN if option.name not in _NOT_IN_PROFILES}
_FORWARDED = {option.name: option for option in FORWARDED}
_SETUP, _PATHS = ("modules", "conda", "lines"), ("runs", "tmp")
_CONTAINER = ("runtime", "image", "mounts", "options")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True)
class Container:
    """The container of a profile."""

    runtime: str  # one of ``RUNTIMES``
    image: str  # path of the image, or its address in a registry
    # further folders, ``SOURCE``, ``SOURCE:TARGET`` or ``SOURCE:TARGET:FLAGS``
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # further options, of ``apptainer exec`` or, with pyxis, of srun


@dataclass(frozen=True)
class ProfileSetting:
    """An environment variable for the job."""

    name: str  # name of the variable
    value: str  # value of the variable
    why: str = ""  # why it is set; may be empty
    line: int = 0  # line of the profile that sets it


@dataclass(frozen=True)
class Profile:
    """A validated profile."""

    name: str = ""  # name as typed; empty without a profile
    path: str = ""  # path of the file
    description: str = ""  # one line about the profile
    # defaults of submit's own options
    slurm: Mapping[str, str | bool] = field(default_factory=dict)
    # further options of sbatch: long name, and value or None
    sbatch: tuple[tuple[str, str | None], ...] = ()
    modules: tuple[str, ...] = ()  # modules to load
    conda: str = ""  # name or path of the conda environment to activate; empty for none
    lines: tuple[str, ...] = ()  # lines of shell, copied unchanged
    environment: tuple[ProfileSetting, ...] = ()  # environment variables
    container: Container | None = None  # the container in which the ranks run, None for none
    # command in front of ``paceline``, in words; in the container if there is one
    prefix: tuple[str, ...] = ()
    # defaults of options of ``paceline run``
    run: Mapping[str, str | bool] = field(default_factory=dict)
    runs: str = ""  # parent of the run folders; empty for the default in the current folder
    tmp: str = ""  # value of ``TMPDIR`` in the job; empty to leave it unset


def read(
    text: str,  # content of the file
    *,
    name: str,  # name of the profile as typed
    path: str,  # path of the file, for messages
    environ: Mapping[str, str],  # environment to expand ``~`` and ``$NAME`` in paths
) -> Profile:
    """Parse a profile.

    Raises UsageError if the file is not TOML, or a key is unknown, or a value has the wrong type.
    """
    return _ProfileReader(text, path, environ).read(name)


class _ProfileReader:
    """Parses one file; errors name the line."""

    def __init__(self, text: str, path: str, environ: Mapping[str, str]) -> None:
        self._text, self._path, self._environ = text, path, environ

    def read(self, name: str) -> Profile:
        whole = toml_reader.parse(
            self._text, path=self._path, name="profile-invalid", kind="profile"
        )
        readers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "slurm": self._slurm,
            "setup": self._setup,
            "environment": self._environment,
            "container": self._container,
            "run": self._run,
            "paths": self._paths,
        }
        values: dict[str, Any] = {"name": name, "path": self._path}
        for key, value in whole.items():
            if key == "description":
                values["description"] = self._string("", key, value)
            elif key not in readers:
                raise self._unknown("", key, [*readers, "description"], whole)
            elif not isinstance(value, dict):
                raise self._invalid("", key, f"[{key}] is a section", f"[{key}]")
            else:
                values |= readers[key](value)
        site = Profile(**values)
        if site.conda and site.container is not None:
            rule = "conda has no effect on a run in a [container], whose image has its own software"
            raise self._invalid("setup", "conda", rule, "leave out conda, or [container]")
        return site

    def _slurm(self, table: Mapping[str, Any]) -> dict[str, Any]:
        own: dict[str, str | bool] = {}
        further: list[tuple[str, str | None]] = []
        for key, value in table.items():
            name = key.replace("-", "_")
            if name in _OWN:
                own |= self._own(key, value)
            elif name == "sbatch":
                words = self._strings("slurm", key, value)
                further += self._checked("slurm", key, option_rules.sbatch_options, words)
            else:
                further += self._sbatch(key, value, table)
        return {"slurm": own, "sbatch": tuple(further)}

    def _own(self, key: str, value: Any) -> dict[str, str | bool]:
        name = key.replace("-", "_")
        if _OWN[name].flag:
            if not isinstance(value, bool):
                raise self._invalid("slurm", key, f"{key} is true or false", f"{key} = true")
            requeues = value if name == "requeue" else not value
            return {"requeue": True} if requeues else {"no_requeue": True}
        if isinstance(value, datetime.time):  # TOML parses 04:00:00 without quotes as a time
            value = value.isoformat()
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self._invalid(
                "slurm", key, f"{key} is a text or a whole number", f'{key} = "..."'
            )
        self._checked("slurm", key, option_rules.check, {name: str(value)})
        return {name: str(value)}

    def _sbatch(
        self, key: str, value: Any, table: Mapping[str, Any]
    ) -> list[tuple[str, str | None]]:
        from paceline.diagnose.lint import sbatch_option

        name, kind = sbatch_option(key.replace("_", "-"))
        if not name or name != key.replace("_", "-"):
            raise self._unknown_sbatch(key, table)
        self._require_kind(key, value, kind)
        if value is False:
            return []  # a flag that a profile sets to false is one that it leaves out
        text = "" if value is True else str(value)
        if CONTROL.search(text):
            raise self._invalid("slurm", key, f"{key} is one line, without control characters", "")

        def require_free(option_value: str) -> None:
            option_rules.require_free(name, option_value, label=f"{key} = {value!r}")

        self._checked("slurm", key, require_free, text)
        return [(name, None if value is True else text)]

    def _unknown_sbatch(self, key: str, table: Mapping[str, Any]) -> UsageError:
        from paceline.diagnose.lint import sbatch_options

        own = [option.long[2:] for option in _OWN.values()]
        also = 'an option of a plug-in: sbatch = ["--option=value"]'
        return self._unknown("slurm", key, [*own, *sbatch_options(), "sbatch"], table, also=also)

    def _require_kind(self, key: str, value: Any, kind: str) -> None:
        """Refuse a value that an option of sbatch does not take."""
        is_flag = isinstance(value, bool)
        if not isinstance(value, (bool, str, int, datetime.time)):
            rule, fix = f"{key} is a text, a whole number, or true", f'{key} = "..."'
        elif kind == "flag" and not is_flag:
            rule, fix = f"{key} is true or false", f"{key} = true"
        elif kind == "value" and is_flag:
            rule, fix = f"{key} needs a value", f'{key} = "..."'
        else:
            return
        raise self._invalid("slurm", key, rule, fix)

    def _setup(self, table: Mapping[str, Any]) -> dict[str, Any]:
        self._require_known("setup", table, _SETUP)
        modules = tuple(self._strings("setup", "modules", table.get("modules", [])))
        bad = next(
            (module for module in modules if CONTROL.search(module) or not module.strip()), None
        )
        if bad is not None:
            raise self._invalid(
                "setup", "modules", f"{bad!r} is not a module", 'modules = ["cuda/12.4"]'
            )
        conda = self._string("setup", "conda", table.get("conda", ""))
        if CONTROL.search(conda) or conda.startswith("-"):
            raise self._invalid(
                "setup", "conda", f"{conda!r} is not an environment", 'conda = "torch"'
            )
        return {
            "modules": modules,
            "conda": self._expanded("setup", "conda", conda, late=False),
            "lines": tuple(self._strings("setup", "lines", table.get("lines", []))),
        }

    def _container(self, table: Mapping[str, Any]) -> dict[str, Any]:
        self._require_known("container", table, _CONTAINER)
        runtime = self._string("container", "runtime", table.get("runtime", ""))
        if runtime not in RUNTIMES:
            near = closest(runtime, RUNTIMES) or RUNTIMES[0]
            rule = f"runtime is one of {', '.join(RUNTIMES)}"
            raise self._invalid("container", "runtime", rule, f'runtime = "{near}"')
        image = self._string("container", "image", table.get("image", ""))
        if not image.strip() or image.startswith("-"):
            rule = "a container has an image: its path, or its address"
            raise self._invalid("container", "image", rule, 'image = "/images/torch.sif"')
        mounts = self._strings("container", "mounts", table.get("mounts", []))
        return {
            "container": Container(
                runtime=runtime,
                image=self._expanded("container", "image", image, late=False),
                mounts=tuple(self._mount(mount) for mount in mounts),
                options=tuple(
                    self._expanded("container", "options", option, late=False)
                    for option in self._strings("container", "options", table.get("options", []))
                ),
            )
        }

    def _mount(self, text: str) -> str:
        mount = self._expanded("container", "mounts", text, late=False)
        if not mount.startswith("/") or "," in mount:
            rule = f"{text!r} is not a folder to mount: its whole path, without commas"
            raise self._invalid("container", "mounts", rule, 'mounts = ["/data:/data:ro"]')
        return mount

    def _environment(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {"environment": tuple(self._setting(name, value) for name, value in table.items())}

    def _setting(self, name: str, value: Any) -> ProfileSetting:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self._invalid(
                "environment", name, f"{name!r} is not the name of a variable", 'NAME = "value"'
            )
        why = ""
        if isinstance(value, dict):
            unknown = next((key for key in value if key not in ("value", "why")), None)
            if unknown is not None or "value" not in value:
                rule = f"{name} has {unknown!r}" if unknown else f"{name} has no value"
                fix = f'{name} = {{ value = "1", why = "..." }}'
                raise self._invalid(
                    "environment", name, f"{rule}; a variable has value and why", fix
                )
            why = self._string("environment", name, value.get("why", ""))
            value = value["value"]
        if not isinstance(value, str) or "\0" in value:
            example = str(value).lower() if isinstance(value, bool) else value
            fix = (
                f'{name} = "{example}"'
                if isinstance(value, (int, float, bool))
                else f'{name} = "..."'
            )
            raise self._invalid(
                "environment", name, f"the value of {name} is a text in quotes", fix
            )
        return ProfileSetting(
            name, value, why, toml_reader.line_of(self._text, "environment", name)
        )

    def _run(self, table: Mapping[str, Any]) -> dict[str, Any]:
        run: dict[str, str | bool] = {}
        prefix: tuple[str, ...] = ()

        def parse(values: Mapping[str, Any]) -> Options:
            return parsing.parse("x", (), typed=values, inherited={})

        for key, value in table.items():
            name = key.replace("-", "_")
            if key == "prefix":
                prefix = self._prefix(value)
            elif name not in _FORWARDED:
                raise self._unknown(
                    "run",
                    key,
                    ["prefix", *(option.long[2:] for option in _FORWARDED.values())],
                    table,
                )
            elif _FORWARDED[name].flag != isinstance(value, bool):
                kind, example = (
                    ("true or false", "true")
                    if _FORWARDED[name].flag
                    else ("a text or a number", '"..."')
                )
                raise self._invalid("run", key, f"{key} is {kind}", f"{key} = {example}")
            elif not isinstance(value, (bool, str, int, float)):
                raise self._invalid("run", key, f"{key} is a text or a number", f'{key} = "..."')
            elif value is not False:
                run[name] = value if value is True else str(value)
                self._checked("run", key, parse, {name: run[name]})
        # each by itself, for the line, and then all, since options may exclude each other
        self._checked("run", "", parse, run)
        return {"run": run, "prefix": prefix}

    def _prefix(self, value: Any) -> tuple[str, ...]:
        fix = 'prefix = "uv run"'
        try:
            words = (
                shlex.split(value)
                if isinstance(value, str)
                else self._strings("run", "prefix", value)
            )
        except ValueError as error:
            raise self._invalid(
                "run", "prefix", f"the quotes of prefix do not match: {error}", fix
            ) from None
        return tuple(self._expanded("run", "prefix", part, late=False) for part in words)

    def _paths(self, table: Mapping[str, Any]) -> dict[str, Any]:
        self._require_known("paths", table, _PATHS)
        return {
            key: self._expanded("paths", key, self._string("paths", key, value), late=key == "tmp")
            for key, value in table.items()
        }

    def _expanded(self, section: str, key: str, text: str, *, late: bool) -> str:
        """Expand ``~`` and variables in a path; with ``late`` the job expands Slurm's variables."""
        if CONTROL.search(text):
            raise self._invalid(section, key, f"{key} is one line, without control characters", "")

        def fill(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if late and name.startswith("SLURM"):
                return match[0]
            if name not in self._environ:
                raise self._invalid(
                    section,
                    key,
                    f"{key} names ${name}, which is not set here",
                    f"export {name}=...",
                )
            return self._environ[name]

        home = self._environ.get("HOME", "~")
        return VARIABLE.sub(fill, re.sub(r"^~(?=/|$)", lambda _: home, text))

    def _checked(self, section: str, key: str, check: Callable[[Any], Any], value: Any) -> Any:
        """Validate a value by the rule of the command line; errors name the line of the profile."""
        try:
            return check(value)
        except UsageError as error:
            raise self._invalid(section, key, error.finding.what, error.finding.fix) from None

    def _string(self, section: str, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self._invalid(section, key, f"{key} is a text", f'{key} = "..."')
        return value

    def _strings(self, section: str, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._invalid(section, key, f"{key} is a list of texts", f'{key} = ["..."]')
        return value

    def _require_known(
        self, section: str, table: Mapping[str, Any], valid_keys: tuple[str, ...]
    ) -> None:
        for key in table:
            if key not in valid_keys:
                raise self._unknown(section, key, [*valid_keys], table)

    def _unknown(
        self,
        section: str,
        key: str,
        valid_keys: list[str],
        table: Mapping[str, Any],
        *,
        also: str = "",
    ) -> UsageError:
        near = closest(key.replace("_", "-"), [name for name in valid_keys if name not in table])
        value = f'"{table[key]}"' if isinstance(table[key], str) else str(table[key]).lower()
        fix = f"{near} = {value}" if section else f"[{near}]"
        if not near:
            fix = also or f"one of {', '.join(valid_keys[:9])}"
        what = f"[{section}] has no key {key}" if section else f"a profile has no section {key}"
        return self._invalid(section, key, what, fix)

    def _invalid(self, section: str, key: str, what: str, fix: str) -> UsageError:
        number = toml_reader.line_of(self._text, section, key)
        where = f"{self._path}:{number}" if number else self._path
        return UsageError.of("profile-invalid", what, where=where, fix=fix)
