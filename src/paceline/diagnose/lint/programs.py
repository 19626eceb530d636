"""Locate the training scripts that a job starts, among the files on the command line or near the
job script.

A job names its script relative to the folder from which it is submitted, which is unknown. So the
likely folders are tried; if they contain different files of that name, none is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch
from paceline.diagnose.lint.job.shell.values import constant

MOST_PROGRAMS = 8
# A script that is not on the command line must not delay the answer.
MOST_BYTES = 256 * 1024
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# Folders above the job script that may be the one from which it is submitted:
# project/scripts/slurm/train.sbatch.
_ABOVE = 3


def started(case: Case, candidates: Sequence[str]) -> dict[str, str]:
    """Return the paths of the scripts that a job starts, by their names in its launches."""
    programs: dict[str, str] = {}
    for launch in case.training:
        if launch.program and launch.program not in programs and len(programs) < MOST_PROGRAMS:
            path = _find(case, launch, candidates)
            if path and os.path.getsize(path) <= MOST_BYTES:
                programs[launch.program] = path
    return programs


def _find(case: Case, launch: Launch, candidates: Sequence[str]) -> str:
    names = _names(launch)
    for name in names:
        fitting = [path for path in candidates if _ends_with(path, name)]
        if fitting:
            return fitting[0] if len(fitting) == 1 else ""
    if case.name == "-":
        return ""
    for name in names:
        paths = {
            os.path.realpath(path): path
            for path in _candidates(case, launch, name)
            if os.path.isfile(path)
        }
        if paths:
            return _shown(case, next(iter(paths.values()))) if len(paths) == 1 else ""
    return ""


def _shown(case: Case, path: str) -> str:
    """Return a path in the form of the job script's path: absolute, or relative to this folder."""
    return os.path.normpath(path) if os.path.isabs(case.name) else os.path.relpath(path)


def _names(launch: Launch) -> list[str]:
    """Return the possible paths of a program, without a leading part that is unknown."""
    program = launch.program
    if not constant(program):
        program = re.split("[\U000f0000-\U000ffffd]", program)[-1].lstrip("/")
        if "/" not in launch.program or not program:
            return []
    if program.endswith(".py"):
        return [program]
    if _MODULE.fullmatch(program):
        path = program.replace(".", "/")
        return [f"{path}.py", f"{path}/__main__.py"]
    return [program] if "/" in program else []


def _ends_with(path: str, name: str) -> bool:
    """Return whether a path may be that of a program: one is the end of the other."""
    pairs = zip(reversed(_parts(path)), reversed(_parts(name)), strict=False)
    return path.endswith(".py") and all(part == other for part, other in pairs)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def _candidates(case: Case, launch: Launch, name: str) -> Iterator[str]:
    for base in _bases(case):
        if os.path.isabs(name):
            yield from _elsewhere(base, name)
            continue
        for folder in _folders(case, launch):
            yield os.path.join(base, folder, name)


def _elsewhere(base: str, name: str) -> Iterator[str]:
    """Yield an absolute path, and its ends below another folder: the project may be elsewhere."""
    yield name
    parts = _parts(name)
    for start in range(len(parts) - 1):
        yield os.path.join(base, *parts[start:])
    if parts[-2:-1] == [os.path.basename(base)]:
        yield os.path.join(base, parts[-1])


def _bases(case: Case) -> Iterator[str]:
    """Yield folders from which a job may be submitted: this one if it is in it, its parents."""
    if not os.path.isabs(case.name) and not os.path.normpath(case.name).startswith(".."):
        yield os.getcwd()
    folder = os.path.dirname(os.path.abspath(case.name))
    for _ in range(_ABOVE):
        if os.path.dirname(folder) != folder:  # never the root
            yield folder
        folder = os.path.dirname(folder)


def _folders(case: Case, launch: Launch) -> Iterator[str]:
    """Yield the ends of the job's working folder, whose beginning may belong to another machine."""
    directive = case.job.directives.last("chdir")
    path = os.path.join(directive.value if directive else "", launch.call.folder)
    known_end = re.split("[\U000f0000-\U000ffffd]|~", path)[-1]
    parts = _parts(known_end)
    if known_end == path and os.path.isabs(path):
        yield path
    for start in range(len(parts) + 1):
        yield os.path.join("", *parts[start:])
