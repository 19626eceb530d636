"""Create the folder of a new project and write its files."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path

import paceline
from paceline.cli.new import texts
from paceline.cli.new.kinds import KINDS, Kind
from paceline.errors import Finding, SetupError, closest, option_invalid
from paceline.text.quoting import printable
from paceline.text.wording import few, shorten

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
# What a new repository has before its first file.
_ALLOWED = {".git"}
_NEW_NAME = "my-training"


def create(target: str, kind_name: str) -> list[str]:
    """Write a project.

    Args:
        target: Its folder, which must be missing or empty. The last part is the project's name.
        kind_name: One of ``KINDS``.

    Returns:
        The paths of the files that were written, in the folder.

    Raises:
        UsageError: The kind is unknown, the name is invalid, or the folder is not empty.
        SetupError: The folder cannot be written, or the installation lacks the example.
    """
    kind = _kind(kind_name)
    folder = Path(target).absolute()
    name = folder.resolve().name if target else ""
    _check_name(name, target)
    try:
        _check_empty(folder, target)
        sources = {file: _example(file) for file in (kind.script, *kind.parts)}
        files = texts.files(kind, sources, name=name, requirements=_requirements(kind.packages))
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetupError(_not_written(error, folder)) from None
    return list(files)


def _kind(name: str) -> Kind:
    if name in KINDS:
        return KINDS[name]
    near = closest(name.lower(), KINDS)
    raise option_invalid(
        f"--from {printable(name)}: this kind of project is unknown",
        evidence=(f"kinds: {', '.join(KINDS)}",),
        fix=f"--from {near}" if near else "paceline new --help",
    )


def _check_name(name: str, target: str) -> None:
    """Check that a folder's name can be typed and pasted anywhere without quotes."""
    if _NAME.fullmatch(name):
        return
    proposed = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-_.")
    raise option_invalid(
        f"{printable(target)!r} is not a name for a project",
        evidence=("allowed: letters, digits, '-', '_' and '.'; a letter or a digit comes first",),
        fix=f"paceline new {proposed or _NEW_NAME}",
    )


def _check_empty(folder: Path, target: str) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise option_invalid(f"{printable(target)} is a file", fix=f"paceline new {_NEW_NAME}")
    present = sorted(path.name for path in folder.iterdir() if path.name not in _ALLOWED)
    if present:
        raise option_invalid(
            f"the folder {printable(target)} is not empty",
            evidence=(f"in it: {shorten(printable(few(present)), 70)}",),
            why="nothing is overwritten",
            fix=f"paceline new {_NEW_NAME}, or another name that is free",
        )


def _not_written(error: OSError, folder: Path) -> Finding:
    return Finding(
        "folder-not-writable",
        f"the project cannot be written: {error.strerror}",
        where=str(error.filename or folder),
        fix="paceline new ~/NAME, or another folder that is yours",
    )


def _example(name: str) -> str:
    """Return an example: the wheel has them in the package, a checkout beside ``src``."""
    package = Path(paceline.__file__).parent
    folders = (package / "examples", package.parents[1] / "examples")
    for folder in folders:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise SetupError.of(
        "input-unreadable",
        f"this installation of paceline lacks its example {name}",
        where=str(folders[0]),
        fix="pip install --force-reinstall --no-deps paceline",
    )


def _requirements(packages: Sequence[str]) -> list[str]:
    """Return the lines of ``requirements.txt``: the versions that paceline itself asks for."""
    declared = [line.partition(";")[0].strip() for line in _declared()]
    versions = {re.split(r"[^\w.-]", line)[0]: line for line in declared}
    return [
        "paceline[torch]",
        *(versions.get(package, package) for package in (*packages, "pytest")),
    ]


def _declared() -> list[str]:
    try:
        return importlib.metadata.requires("paceline") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return []
