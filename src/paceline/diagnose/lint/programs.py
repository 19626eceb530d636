"""Finds the training scripts that a job starts, near the job script or among the files that were given.

A job names its script relative to a folder that is only known when it is submitted. So the likely folders are tried,
and where they hold different files of the name none is taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from paceline.diagnose.lint.job.case import Case
from paceline.diagnose.lint.job.launches import Launch
from paceline.diagnose.lint.job.values import constant

MOST_PROGRAMS = 8
# A script that nobody asked to judge must not delay the answer.
MOST_BYTES = 256 * 1024
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
# Folders above the job script that may be the one from which it is submitted: project/scripts/slurm/train.sbatch.
_ABOVE = 3


def started(case: Case, candidates: Sequence[str]) -> dict[str, str]:
    """Return the training scripts that a job starts, by what its launches call them.

    Args:
        case: The job script.
        given: Files that were given with it; one of them that fits is taken before any other.
    """
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
        paths = {os.path.realpath(path): path for path in _candidates(case, launch, name) if os.path.isfile(path)}
        if paths:
            return _shown(case, next(iter(paths.values()))) if len(paths) == 1 else ""
    return ""


def _shown(case: Case, path: str) -> str:
    """A path in the form of the job's: relative to this folder, or from the root."""
    return os.path.normpath(path) if os.path.isabs(case.name) else os.path.relpath(path)


def _names(launch: Launch) -> list[str]:
    """What the file may be called: the path as it is written, from behind what is not known in it."""
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
    """Whether a file that was given may be the one that the job means: as much of both paths as there is agrees."""
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
    """A path from the root, and the same file where the project lies in another place: its folder has the same name."""
    yield name
    parts = _parts(name)
    for start in range(len(parts) - 1):
        yield os.path.join(base, *parts[start:])
    if parts[-2:-1] == [os.path.basename(base)]:
        yield os.path.join(base, parts[-1])


def _bases(case: Case) -> Iterator[str]:
    """Folders from which the job may be submitted: this one if the job is in it, and those around the job."""
    if not os.path.isabs(case.name) and not os.path.normpath(case.name).startswith(".."):
        yield os.getcwd()
    folder = os.path.dirname(os.path.abspath(case.name))
    for _ in range(_ABOVE):
        if os.path.dirname(folder) != folder:  # never the root
            yield folder
        folder = os.path.dirname(folder)


def _folders(case: Case, launch: Launch) -> Iterator[str]:
    """Where the script has changed to: the ends of that path, since its beginning may be another machine's."""
    directive = case.job.directives.last("chdir")
    path = os.path.join(directive.value if directive else "", launch.call.folder)
    shown = re.split("[\U000f0000-\U000ffffd]|~", path)[-1]
    parts = _parts(shown)
    if shown == path and os.path.isabs(path):
        yield path
    for start in range(len(parts) + 1):
        yield os.path.join("", *parts[start:])
