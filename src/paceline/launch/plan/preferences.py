"""Read preferences of a user or site for all runs, from variables and a configuration file.

Typed options win over the environment, which wins over the file. Pure, but for ``read_file``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline import env
from paceline.errors import UsageError, closest, option_invalid
from paceline.launch.plan.options import OPTIONS
from paceline.text import toml

# Option -> its variable and the type of its value in the file.
_KEYS: Mapping[str, tuple[str, type]] = {
    option.name: option.preference for option in OPTIONS if option.preference is not None
}
_NEEDS_PROBE = {option.name for option in OPTIONS if option.needs_probe}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

Preferences = Mapping[str, tuple[str, str]]  # option -> its value as typed, and its source


def read(environ: Mapping[str, str]) -> Preferences:
    """Return the preferences, which apply to options that are not typed.

    Raises UsageError if the file cannot be read, or a value in it or in the environment is wrong.
    """
    path = (
        Path(environ.get(env.CONFIG_HOME) or os.path.expanduser("~/.config"))
        / "paceline"
        / "config.toml"
    )
    return {**_from_file(read_file(path), path), **_from_environ(environ)}


def read_file(path: Path) -> str:
    """Return the text of the configuration file, empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"the configuration file cannot be read: {error}", where=str(path)) from None


def _from_file(text: str, path: Path) -> Preferences:
    try:
        content = toml.loads(text).get("run", {})
        others = set(toml.loads(text)) - {"run"}
    except toml.TOMLDecodeError as error:
        raise _wrong(f"the configuration file is not TOML: {error}", where=str(path)) from None
    if others or not isinstance(content, dict):
        raise _wrong(
            f"the configuration file has one table, [run], and not {min(others, default='run')}",
            str(path),
        )
    source = abbreviate_home(path)
    return {key: (_file_value(key, value, path), source) for key, value in content.items()}


def _file_value(key: str, value: Any, path: Path) -> str:
    if key not in _KEYS:
        near = closest(key, _KEYS)
        fix = f"{near} = ..." if near else f"one of {', '.join(_KEYS)}"
        raise UsageError.of(
            "option-unknown",
            f"the configuration file has no key {key}",
            where=f"{path}, [run]",
            fix=fix,
        )
    kind = _KEYS[key][1]
    is_number = kind is float and isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and type(value) is not kind:
        words = {bool: "true or false", str: "text in quotes", float: "a number of seconds"}[kind]
        raise _wrong(f"{key} = {value!r}: {key} is {words}", where=f"{path}, [run]")
    return _flag(value) if kind is bool else str(value)


def _from_environ(environ: Mapping[str, str]) -> Preferences:
    values = {}
    for key, (name, kind) in _KEYS.items():
        text = environ.get(name, "")
        if not text:
            continue
        if kind is bool:
            if text.lower() not in _TRUE + _FALSE:
                raise _wrong(
                    f"{name}={text} is neither 1 nor 0", where=f"environment variable {name}"
                )
            text = _flag(text.lower() in _TRUE)
        values[key] = (text, f"{name} is set")
    return values


def _flag(value: bool) -> str:
    return "1" if value else "0"


def abbreviate_home(path: Path) -> str:
    """Return a path as it is printed, with ``~`` for the home folder."""
    home = os.path.expanduser("~")
    is_below = home != "/" and str(path).startswith(f"{home}/")
    return str(path).replace(home, "~", 1) if is_below else str(path)


def apply(preferences: Preferences, *, typed: Mapping[str, Any]) -> Preferences:
    """Return the preferences that the command line does not override."""
    effective = {key: value for key, value in preferences.items() if key not in typed}
    if _NEEDS_PROBE & set(typed):  # a typed option that needs the probe wins over no_probe
        effective.pop("no_probe", None)
    if "no_probe" in typed or effective.get("no_probe", ("0", ""))[0] == "1":
        effective = {key: value for key, value in effective.items() if key not in _NEEDS_PROBE}
    return effective


def _wrong(what: str, where: str) -> UsageError:
    return option_invalid(what, where=where, fix="paceline run --help shows what options take")
