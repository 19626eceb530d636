"""Check settings of NCCL and torch: unknown names, invalid values, and contradictions. Settings in,
findings out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.diagnose.variables.families import closest_real, is_closed, is_relevant
from paceline.diagnose.variables.folklore import folklore
from paceline.diagnose.variables.given import Settings
from paceline.diagnose.variables.harm import judge_harm
from paceline.diagnose.variables.pairs import judge_pairs
from paceline.diagnose.variables.renamed import LIBRARIES, RENAMED, judge_renamed
from paceline.diagnose.variables.setting import Setting
from paceline.diagnose.variables.table import KnownVariable, known, newest_version
from paceline.diagnose.variables.torch_pairs import judge_torch_pairs
from paceline.diagnose.variables.values import judge_value
from paceline.diagnose.variables.versions import at_least, release
from paceline.errors import Finding, gravest_first

# Where no version is known: the oldest torch that is supported, and the NCCL that it brings.
OLDEST_TORCH, OLDEST_NCCL = "2.8", "2.27"
PLUGIN_VARIABLES = (
    "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_ENV_PLUGIN",
    "NCCL_NET",
)


def judge_name(
    setting: Setting, settings: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield what is to be said of a name that has no effect."""
    if setting.name != setting.name.strip() or " " in setting.name:
        yield _blanks(setting)
        return
    variable = known().get(setting.name)
    if variable is not None:
        # Of a renamed variable judge_renamed tells, with the name to write instead.
        if setting.name not in RENAMED:
            yield from _of_another_version(setting, variable, versions)
        return
    story = folklore(setting.name)
    if story is not None:
        yield _unknown(
            setting, f"no library reads {setting.name}", fix=story.instead, why=story.why
        )
        return
    yield from _never_heard_of(setting, settings, versions)


def _never_heard_of(
    setting: Setting, settings: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[Finding]:
    near = closest_real(setting.name)
    if near:
        yield _unknown(
            setting,
            f"no library reads {setting.name}; there is {near}",
            fix=f"{setting.name} -> {near}",
        )
    elif is_closed(setting.name):
        named = (settings.get(name, "none").lower() for name in PLUGIN_VARIABLES)
        library = "torch" if setting.name.startswith(("TORCH", "GLOO")) else "nccl"
        have, last = release(versions.get(library)), release(newest_version(library))
        is_newer_than_the_table = have is not None and last is not None and have > last
        if is_newer_than_the_table or not set(named) <= set(_INTERNAL):
            return  # a version that we have not looked at, or a plug-in, may read it
        yield _unknown(
            setting,
            f"no {LIBRARIES[library]} up to {newest_version(library)} reads {setting.name}",
            fix=f"take {setting.name} out, unless your own program reads it",
        )


_INTERNAL = ("", "none", "ib", "socket")  # what loads no plug-in


def _of_another_version(
    setting: Setting, variable: KnownVariable, versions: Mapping[str, str]
) -> Iterator[Finding]:
    if variable.library not in LIBRARIES:
        return  # the table has no versions of the libraries below NCCL and torch
    library, have = LIBRARIES[variable.library], versions.get(variable.library)
    if variable.since and at_least(versions, variable.library, variable.since) is False:
        text = f"{library} reads {setting.name} since {variable.since}, and {have} is installed"
        yield _unknown(
            setting,
            text,
            fix=f"take {setting.name} out, or install {library} {variable.since} or newer",
        )
    elif variable.until and _is_gone(variable, versions):
        text = (
            f"{library} {have} does not read {setting.name}"
            if have
            else f"{library} no longer reads {setting.name}"
        )
        yield _unknown(
            setting,
            f"{text}; the last to do so was {variable.until}",
            fix=f"take {setting.name} out",
        )


def _is_gone(variable: KnownVariable, versions: Mapping[str, str]) -> bool:
    have, until = release(versions.get(variable.library)), release(variable.until)
    if have is None:
        have = release(OLDEST_NCCL if variable.library == "nccl" else OLDEST_TORCH)
    return have is not None and until is not None and have > until


def _blanks(setting: Setting) -> Finding:
    likely = setting.name.strip().split()[-1]  # behind export or set
    return _unknown(
        setting,
        f"the name of this line is {setting.name!r} to NCCL, which takes all before the = of a line"
        " in its files",
        fix=f"{likely}={setting.text}",
        why=(
            "a blank or a word such as export before or behind the name makes it another name,"
            " which nothing reads"
        ),
    )


def _unknown(
    setting: Setting, text: str, *, fix: str, why: str = "it is silently ignored"
) -> Finding:
    return Finding(
        "variable-unknown",
        text,
        where=setting.where,
        evidence=(setting.line,),
        why=why,
        fix=fix,
        severity="warning",
    )


def judge_settings(
    settings: Mapping[str, str],
    *,
    # such as ``/etc/nccl.conf:3``; by default the variable's name
    where: Mapping[str, str] | None = None,
    # of "nccl" and "torch"; by default all names are known that a recent version reads
    versions: Mapping[str, str] | None = None,
    num_nodes: int | None = None,
) -> list[Finding]:
    """Return the findings about settings of NCCL, torch and the libraries below them, errors first.

    Other names are ignored. A value that a shell still expands (it contains ``$`` or a backtick) is
    not checked, but its name is.
    """
    places, known_versions = where or {}, versions or {}
    relevant = {
        name: Setting(name, value, places.get(name, name))
        for name, value in settings.items()
        if is_relevant(name.strip().rpartition(" ")[2]) or name.startswith("SLURM_")
    }
    findings = list(_single(relevant, known_versions))
    together = Settings(relevant, known_versions, num_nodes)
    findings += [*judge_pairs(together), *judge_torch_pairs(together), *judge_harm(together)]
    return gravest_first(findings)


def _single(settings: Mapping[str, Setting], versions: Mapping[str, str]) -> Iterator[Finding]:
    values = {name: setting.value for name, setting in settings.items()}
    for setting in settings.values():
        if setting.name.startswith("SLURM_"):
            continue
        yield from judge_name(setting, values, versions)
        yield from judge_renamed(setting, versions)
        yield from judge_value(setting, versions)
