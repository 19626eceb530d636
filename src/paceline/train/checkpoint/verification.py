"""Reads all of a checkpoint and compares it with its manifest. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.errors import RunError
from paceline.train.checkpoint import findings, folder, manifest
from paceline.train.checkpoint.manifest import FileInfo, Manifest


def verify(path: Path) -> Manifest:
    """Read every file of the checkpoint in the folder ``path``.

    Returns:
        What it says of itself, which is true.

    Raises:
        RunError: A file is missing, cut off or changed.
    """
    told = folder.read_manifest(path)
    if lines := damages(path, told.files, sorted(told.files)):
        raise findings.damaged(path, lines).error()
    return told


def latest_whole(where: Path, *, before: Path) -> tuple[Path, int] | None:
    """Return the latest checkpoint of a folder that is older than a damaged one and whole, and its steps.

    Args:
        where: The folder of checkpoints.
        before: The damaged one.
    """
    paths = folder.list_paths(where)
    limit = next((serial for serial, path in paths.items() if path.name == before.name), 0)
    for serial in sorted((serial for serial in paths if serial < limit), reverse=True):
        try:
            return paths[serial], verify(paths[serial]).step
        except RunError:
            continue
    return None


def damages(path: Path, files: Mapping[str, FileInfo], names: Iterable[str]) -> list[str]:
    """Return what is wrong with some files of a checkpoint, by reading them.

    Args:
        path: Its folder.
        files: What its files must be like.
        names: Those to read.
    """
    lines = []
    for name in names:
        told = files.get(name)
        if told is None:
            lines.append(f"{name} is not in the manifest")
            continue
        if wrong := manifest.check_sizes({name: told}, folder.file_sizes(path, [name])):
            lines += wrong
        elif (found := folder.checksum(path / name)) != told:
            lines.append(f"{name} has the checksum {found.crc32:08x} instead of {told.crc32:08x}")
    return lines
