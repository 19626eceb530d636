"""Reads the small files in which a kernel tells about itself; what cannot be read is empty."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def text(path: Path) -> str:
    """Return what a file says without the space around it, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, base: int = 10) -> int | None:
    """Return the number that a file holds, None if there is none."""
    try:
        return int(text(path), base)
    except ValueError:
        return None


def names(folder: Path) -> list[str]:
    """Return the names in a folder in order, none if it cannot be read."""
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError:
        return []


def link_name(path: Path) -> str:
    """Return the last name of what a link leads to, empty if it is none."""
    try:
        return Path(path.readlink()).name
    except OSError:
        return ""


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as the kernel writes them: ``0-15,32-47``."""
    found: list[list[int]] = []
    for each in sorted(set(numbers)):
        if found and found[-1][1] == each - 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)
