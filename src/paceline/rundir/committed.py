"""Decide which checkpoints of a folder are finished, and read their manifests. No torch.

The launcher reads them too, to say what a failed run can continue from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import RunError
from paceline.rundir import manifest
from paceline.rundir.files import MANIFEST, read_bytes
from paceline.rundir.manifest import Committed, Manifest
from paceline.text.wording import few_lines

_MANIFEST_BYTES = 1 << 26  # limit on reading; a manifest names every file
_MOST_DAMAGES = 8  # lines of evidence


def list_paths(folder: Path) -> dict[int, Path]:
    """Return the committed checkpoints by serial, the oldest first, without reading any."""
    if not folder.is_dir():
        return {}
    named = ((manifest.parse_committed(path.name), path) for path in folder.iterdir())
    paths = {numbers[0]: path for numbers, path in named if numbers and (path / MANIFEST).is_file()}
    return dict(sorted(paths.items()))


def list_committed(folder: Path, *, is_strict: bool = True) -> list[Committed]:
    """Return the committed checkpoints of a folder, the oldest first; none if there is no folder.

    An unreadable manifest raises RunError, or its checkpoint is left out unless ``is_strict``.
    """
    committed = []
    for serial, path in list_paths(folder).items():
        try:
            committed.append(Committed(path, serial, read_manifest(path)))
        except RunError:
            # A missing manifest means that its run deleted the checkpoint in the meantime.
            if is_strict and (path / MANIFEST).is_file():
                raise
    return committed


def last_committed(folder: Path) -> Committed | None:
    """Return the last committed checkpoint that can be read, or None."""
    try:
        paths = list_paths(folder)
    except OSError:
        return None
    for serial in reversed(paths):
        with contextlib.suppress(RunError):
            return Committed(paths[serial], serial, read_manifest(paths[serial]))
    return None


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of the checkpoint ``path``; raise RunError if it cannot be read."""
    try:
        return manifest.parse(read_bytes(path / MANIFEST, most_bytes=_MANIFEST_BYTES))
    except (OSError, ValueError) as error:
        raise damaged(path, [f"{MANIFEST}: {error}"]) from error


def damaged(path: Path, lines: Sequence[str]) -> RunError:
    """Return the error that files of a checkpoint differ from what was written."""
    return RunError.of(
        "checkpoint-damaged",
        f"files of the checkpoint {path.name} are not as they were written",
        where=str(path),
        evidence=few_lines(lines, _MOST_DAMAGES),
        why="nothing was loaded: the values in it cannot be trusted",
        fix=f"use an earlier one: paceline checkpoint list {path.parent}",
    )
