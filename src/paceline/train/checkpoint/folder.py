"""List, begin, commit, verify and delete checkpoints in their folder. No torch.

A checkpoint is final once ``commit`` has renamed its folder. To verify it, all of it is read and
compared with its manifest.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from paceline.errors import PacelineError, RunError
from paceline.rundir import manifest, owned
from paceline.rundir.committed import (
    damaged,
    last_committed,
    list_committed,
    list_paths,
    read_manifest,
)
from paceline.rundir.files import MANIFEST, RUNS, RunDir, open_file, run_folders
from paceline.rundir.manifest import Committed, FileInfo, Manifest
from paceline.train.checkpoint import findings

_CHUNK_BYTES = 1 << 22


# Reading


def resolve(path: Path) -> Path:
    """Return the checkpoint that a path refers to: the folder itself, or the latest one in it.

    Raises UsageError if the path holds no checkpoint, or one that was not committed.
    """
    if manifest.is_temporary(path.name) and path.is_dir():
        raise findings.unfinished(path)
    if (path / MANIFEST).is_file():
        return path
    if paths := list_paths(checkpoints_of(path)):
        return latest(paths)
    if not path.exists():
        raise findings.missing(path, "this folder does not exist")
    if manifest.parse_committed(path.name) or any(path.glob("*.distcp")):
        raise findings.unfinished(path)
    raise findings.missing(path, "this folder holds no checkpoint", fix="session.save() makes one")


def checkpoints_of(path: Path) -> Path:
    """Return the folder of checkpoints, given that of a run, of checkpoints or of one of them."""
    of_run = RunDir(path).checkpoints
    if of_run.is_dir():
        return of_run
    return path.parent if (path / MANIFEST).is_file() else path


def list_of(path: Path | None) -> tuple[Path, list[Committed]]:
    """Return a folder of checkpoints and the committed, readable ones in it, the oldest first.

    ``path`` is the folder of a run, of checkpoints, or of a checkpoint. None means the run in
    ``paceline-runs/`` (or ``runs/``, where earlier versions put them) with the last commit. Raises
    UsageError if the folder does not exist, or no run has a checkpoint.
    """
    if path is None:
        return _newest(run_folders())
    if not path.is_dir():
        raise findings.missing(
            path, "this folder does not exist", fix="paceline checkpoint list RUN-FOLDER"
        )
    where = checkpoints_of(path)
    return where, list_committed(where, is_strict=False)


def _newest(places: Sequence[Path]) -> tuple[Path, list[Committed]]:
    folders = [RunDir(run).checkpoints for runs in places for run in runs.iterdir()]
    filled = [
        (folder, committed)
        for folder in folders
        if (committed := list_committed(folder, is_strict=False))
    ]
    if not filled:
        what, fix = "no run in this folder has a checkpoint", "paceline checkpoint list RUN-FOLDER"
        raise findings.missing(RUNS.absolute(), what, fix=fix)
    return max(filled, key=lambda pair: pair[1][-1].manifest.time_ns)


def latest(paths: Mapping[int, Path]) -> Path:
    """Return the last committed checkpoint."""
    return paths[max(paths)]


def file_sizes(path: Path, names: Iterable[str]) -> dict[str, int | None]:
    """Return the size of each file in bytes; None for a missing file."""
    sizes: dict[str, int | None] = {}
    for name in names:
        try:
            sizes[name] = (path / name).stat().st_size
        except FileNotFoundError:
            sizes[name] = None
    return sizes


def checksum(path: Path) -> FileInfo:
    """Return the size and checksum of a file, by reading all of it."""
    crc, size, buffer = 0, 0, memoryview(bytearray(_CHUNK_BYTES))
    with open_file(path) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
            size += count
    return FileInfo(size, crc)


# Writing


def begin(folder: Path, *, step: int) -> Path:
    """Create the folder that the next checkpoint is written to before its commit."""
    serial = _next_serial(folder)
    token = secrets.token_hex(4)
    path = folder / manifest.temporary_name(
        serial, step, token=token, pid=os.getpid(), host=socket.gethostname()
    )
    path.mkdir(parents=True)
    return path


def _next_serial(folder: Path) -> int:
    # Counts all names, not only committed ones: a folder without its manifest still occupies its
    # name.
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return 1 + max(
        (numbers[0] for name in names if (numbers := manifest.parse_committed(name))), default=0
    )


def commit(path: Path, description: Manifest) -> Path:
    """Commit the checkpoint written to ``path``, atomically and durably; return its new folder."""
    owned.write_whole(path / MANIFEST, manifest.dump(description))
    sync_folder(path)
    # Computed again, because a run that was believed dead may have committed one in the meantime.
    serial = _next_serial(path.parent)
    committed = path.parent / manifest.committed_name(serial, description.step)
    path.rename(committed)
    sync_folder(path.parent)
    return committed


def remove(path: Path) -> str:
    """Delete a checkpoint, committed or not, or all of a folder; the next cleanup does the rest.

    It is renamed first, so that a kill in between leaves no checkpoint that only looks intact. One
    that holds another file than ours stays as it is, and the reason is returned.
    """
    trash = manifest.trash_name(path.name.lstrip("."), token=secrets.token_hex(4))
    try:
        owned.delete_folder(path, manifest.is_ours, trash=trash)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def remove_stale(folder: Path) -> None:
    """Delete what dead runs have left in a folder."""
    host, now_s = socket.gethostname(), time.time()
    for path in folder.iterdir():
        if manifest.is_stale(
            path.name, host=host, is_alive=is_alive, age_s=now_s - last_change_s(path)
        ):
            remove(path)


def unneeded(folder: Path) -> dict[Path, str]:
    """Return what may go from a folder of checkpoints that no run uses, with the reasons.

    The latest and the best of each training stay, and what the user keeps. Raises OSError if the
    folder is a link, or another user's.
    """
    if not os.path.lexists(folder):
        return {}
    with owned.folder(folder):
        committed = list_committed(folder, is_strict=False)
    doomed = [
        one.path
        for run in dict.fromkeys(one.manifest.run for one in committed)
        for one in manifest.choose_doomed(committed, run=run, keep_last=1, keep_best=1)
    ]
    older = [path for path in doomed if not RunDir(path).keep.exists()]
    left = [path for path in folder.iterdir() if _is_uncommitted(path.name)]
    return dict.fromkeys(older, "neither latest nor best") | dict.fromkeys(left, "not committed")


def _is_uncommitted(name: str) -> bool:
    return manifest.is_stale(name, host="", is_alive=is_alive, age_s=math.inf)


def last_change_s(path: Path) -> float:
    """Return the time of the last write in a folder, in Unix seconds; 0 if it is gone."""
    try:
        return max(entry.stat().st_mtime for entry in (path, *path.iterdir()))
    except OSError:
        return 0.0


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to the disk, so that they survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def not_written(path: Path, error: OSError, *, where: str, needed_bytes: int = 0) -> PacelineError:
    """Return the error for a file system error while a checkpoint is written to the folder."""
    return findings.of_os_error(
        error,
        folder=path,
        where=where,
        needed_bytes=needed_bytes,
        free_bytes=_free_bytes(path),
        has_earlier=last_committed(path) is not None,
    )


def _free_bytes(path: Path) -> int | None:
    """Return the free space in bytes; None if it is unknown."""
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            return shutil.disk_usage(place).free
    return None


def verify(path: Path) -> Manifest:
    """Read every file of the checkpoint ``path``, and compare it with the manifest; return that.

    Raises RunError if a file is missing, truncated or changed.
    """
    content = read_manifest(path)
    if lines := damages(path, content.files, sorted(content.files)):
        raise damaged(path, lines)
    return content


def latest_intact(where: Path, *, before: Path) -> tuple[Path, int] | None:
    """Return the latest intact checkpoint older than a damaged one, and its step; or None."""
    paths = list_paths(where)
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
        if differences := manifest.check_sizes({name: written}, file_sizes(path, [name])):
            lines += differences
            continue
        present = checksum(path / name)
        if present != written:
            lines.append(
                f"{name} has the checksum {present.crc32:08x} instead of {written.crc32:08x}"
            )
    return lines
