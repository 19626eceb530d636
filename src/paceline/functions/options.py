"""Turn keyword arguments into options of ``paceline submit``. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from paceline.errors import Finding, UsageError, closest
from paceline.launch.plan.submit_options import FORWARDED, OWN, SWEEPS

# What has no meaning for a function: the script's kind, what is printed, and what map decides.
_NEVER = {
    "module",
    "no_python",
    "run_path",
    "dry_run",
    "follow",
    "json",
    *(option.name for option in OWN if option.group == SWEEPS),
}
_OPTIONS = {option.name: option for option in (*OWN, *FORWARDED) if option.name not in _NEVER}
# What a machine without Slurm can obey: options of paceline run, and where the run folder is.
_OF_MACHINE = {option.name for option in FORWARDED if option.name not in _NEVER} | {"run_dir"}


def typed(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as the command line would have them: ``{name: text}``.

    Names have underscores. None and False leave an option out; True is a flag, and a tuple of texts
    an option that may be given several times. Raises UsageError if an option does not exist, or a
    value is of the wrong kind.
    """
    return {
        name: _value(name, value)
        for name, value in keywords.items()
        if value is not None and value is not False
    }


def for_machine(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that a machine without Slurm obeys.

    What is asked of Slurm has no effect here: the machine is what it is. The same program then runs
    in both places.
    """
    return {name: value for name, value in typed(keywords).items() if name in _OF_MACHINE}


def _value(name: str, value: Any) -> Any:
    option = _OPTIONS.get(name)
    if option is None:
        raise UsageError(_unknown(name))
    if option.flag:
        if value is not True:
            raise UsageError(_invalid(name, value, "is True or False"))
        return True
    if option.many:
        return (str(value),) if isinstance(value, str) else tuple(map(str, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise UsageError(_invalid(name, value, "is a text or a number"))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _unknown(name: str) -> Finding:
    near = closest(name, _OPTIONS)
    return Finding(
        "option-unknown",
        f"{name}= is not an option of paceline submit",
        where="keyword arguments",
        why="arguments that the function takes by name: functools.partial(function, name=value)",
        fix=f"{near}=" if near else "paceline submit --help-all lists them",
    )


def _invalid(name: str, value: Any, rule: str) -> Finding:
    what = f"{name}={value!r}: {name} {rule}"
    return Finding("option-invalid", what, where="keyword arguments", fix=f"{name}=...")
