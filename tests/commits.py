"""Committed checkpoints for tests that only read what a checkpoint says of itself."""

from __future__ import annotations

from pathlib import Path

from paceline.rundir.files import MANIFEST
from paceline.rundir.manifest import Manifest, committed_name, dump


def text(step: int, *, seconds: float = 0.0, metric: float | None = None) -> str:
    """Return a manifest of no other files."""
    return dump(Manifest(step, 0, metric, "max", 2, 5, "2.13.0", {}, "run", seconds))


def commit(folder: Path, step: int, *, serial: int = 1, **said: float) -> Path:
    """Make a checkpoint in a folder of checkpoints."""
    path = folder / committed_name(serial, step)
    path.mkdir(parents=True)
    (path / MANIFEST).write_text(text(step, **said))
    return path
