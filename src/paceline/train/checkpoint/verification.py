"""Verify a checkpoint: read all of it and compare it with its manifest. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.errors import RunError
from paceline.train.checkpoint import findings, folder, manifest
from paceline.train.checkpoint.manifest import FileInfo, Manifest


def verify(path: Path) -> Manifest:
    """Read every file of the checkpoint ``path``, and compare it with the manifest; return that.

    Raises RunError if a file is missing, truncated or changed.
    """
    content = folder.read_manifest(path)
    if lines := damages(path, content.files, sorted(content.files)):
        raise findings.damaged(path, lines)
    return content


def latest_intact(where: Path, *, before: Path) -> tuple[Path, int] | None:
    """Return the latest intact checkpoint older than a damaged one, and its step; or None."""
    paths = folder.list_paths(where)
    limit = next((serial for serial, path in paths.items() if path.name == before.name), 0)
    for serial in sorted((serial for serial in paths if serial < limit), reverse=True):
        try:
            return paths[serial], verify(paths[serial]).step
        except RunError:
            continue
    return None


def damages(path: Path, files: Mapping[str, FileInfo], names: Iterable[str]) -> list[str]:
    """Read some files of a checkpoint, and return what is wrong with them."""
    lines = []
    for name in names:
        written = files.get(name)
        if written is None:
            lines.append(f"{name} is not in the manifest")
            continue
        if differences := manifest.check_sizes({name: written}, folder.file_sizes(path, [name])):
            lines += differences
            continue
        present = folder.checksum(path / name)
        if present != written:
            lines.append(
                f"{name} has the checksum {present.crc32:08x} instead of {written.crc32:08x}"
            )
    return lines
