"""Write, replace and delete files, and touch nobody else's (``tests/law/test_own_files.py``).

A file takes the place of a regular file only, and a link is followed if this user or root has made
it. Of a folder all or nothing is deleted: it is no link, and what is in it is this user's, with
names of ours. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO in the place of the file would wait for a reader.
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
APPEND = os.O_CREAT | os.O_APPEND
_ENDS = {stat.S_IFREG: "", stat.S_IFDIR: "/", stat.S_IFLNK: "@"}  # of names by their kind

HasOurName = Callable[[str], object]  # of a path below a folder


@contextlib.contextmanager
def whole(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a file that takes its place only when it is complete (temporary name, fsync, rename).

    Its mode is there from the start, also if there is an older file with another one. Raises
    OSError if it cannot be written, for example on a full disk; what was written is gone.
    """
    place = _place(path)
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, _place(place))
    except BaseException:
        delete(temporary)
        raise


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically: a reader sees the old or the new content."""
    with whole(path, mode=mode) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def open_to_write(path: Path, flags: int) -> int:
    """Open a regular file in its place, return the descriptor; only appending follows a link."""
    is_devnull = os.fspath(path) == os.devnull  # torch's name for no log
    if flags & os.O_APPEND and not is_devnull:
        path = _place(path)
    handle = os.open(path, _WRITE | flags, 0o666)
    if is_devnull or stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise _not_regular(path)


def append(path: Path) -> IO[bytes]:
    """Open a regular file for appending."""
    return os.fdopen(open_to_write(path, APPEND), "ab")


def delete(path: Path) -> None:
    """Delete a regular file or a link, if it is there; raise OSError for anything else."""
    with contextlib.suppress(FileNotFoundError):
        kind = os.lstat(path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
            raise _not_regular(path)
        os.unlink(path)


def _place(path: Path) -> Path:
    """Return where a file is written: at its path, or where a link of this user's or root's leads.

    Raises OSError if anything but a regular file is there.
    """
    with contextlib.suppress(FileNotFoundError):
        if _is_trusted_link(path):
            path = Path(os.path.realpath(path))
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise _not_regular(path)
    return path


def _is_trusted_link(path: Path) -> bool:
    status = os.lstat(path)
    return stat.S_ISLNK(status.st_mode) and status.st_uid in (os.geteuid(), 0)


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", str(path))


@contextlib.contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Open a folder of this user's that is no link; yield a path that leads there from now on.

    Raises OSError for anything else.
    """
    try:
        handle = os.open(path, _FOLDER)
    except NotADirectoryError:
        raise OSError(errno.ELOOP, "a link, or no folder", str(path)) from None
    try:
        same = Path(f"/proc/self/fd/{handle}")
        place = same if same.exists() else path
        if not is_ours(os.fstat(handle), place):
            raise PermissionError(errno.EPERM, "it is another user's", str(path))
        yield place
    finally:
        os.close(handle)


def is_ours(status: os.stat_result, place: Path) -> bool:
    """Return whether a folder, or an entry of it, is this user's.

    A file server may take root, or everybody, for another user: a new file is then that one's too.
    """
    if status.st_uid == os.geteuid():
        return True
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=place) as file:
        return os.fstat(file.fileno()).st_uid == status.st_uid
    return False


def delete_folder(
    path: Path, has_our_name: HasOurName, *, trash: str = "", is_dry: bool = False
) -> int:
    """Delete a folder, which is first renamed to ``trash``; return the bytes of its files.

    Names of folders in it end in a slash, those of links in ``@``. Raises OSError, and deletes
    nothing, if anything in it is not ours. A dry run only tells.
    """
    if path.parent.is_symlink() and not _is_trusted_link(path.parent):
        raise PermissionError(errno.EPERM, "it is behind a link of another user", str(path))
    with folder(path) as place:
        num_bytes = _walk(place, "", has_our_name, deletes=False)
        if is_dry:
            return num_bytes
        renamed = path.with_name(trash or path.name)
        os.rename(path, renamed)
        _walk(place, "", has_our_name, deletes=True)
    os.rmdir(renamed)
    return num_bytes


def _walk(place: Path, prefix: str, has_our_name: HasOurName, *, deletes: bool) -> int:
    """Return the bytes of the files in an open folder, and perhaps delete them."""
    num_bytes = 0
    for name in os.listdir(place):
        path, status = place / name, os.lstat(place / name)
        full = prefix + name + _ENDS.get(stat.S_IFMT(status.st_mode), "?")
        if not has_our_name(full) or not is_ours(status, place):
            where = os.path.realpath(place)
            raise PermissionError(errno.EPERM, f"{where}/{name} is not a file of paceline's")
        if stat.S_ISDIR(status.st_mode):
            with folder(path) as inner:
                num_bytes += _walk(inner, full, has_our_name, deletes=deletes)
            if deletes:
                os.rmdir(path)
            continue
        num_bytes += status.st_size
        if deletes:
            os.unlink(path)
    return num_bytes
