"""Read the small files of ``/proc`` and ``/sys``; unreadable files count as empty."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """Return a file's content without surrounding whitespace; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, base: int = 10) -> int | None:
    """Return the number in a file; None if there is none."""
    try:
        return int(text(path), base)
    except ValueError:
        return None


def names(folder: Path) -> list[str]:
    """Return the sorted names in a folder; empty if it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def link_name(path: Path) -> str:
    """Return the last part of a link's target; empty if the path is not a link."""
    try:
        return Path(path.readlink()).name
    except OSError:
        return ""
