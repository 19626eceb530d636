"""Write, replace and delete files and folders, and touch nobody else's.

Only this module does so (``tests/law/test_own_files.py``). A file takes the place of a regular
file only, and a link is followed if this user or root has made it. Of a folder all or nothing is
deleted: it is no link, and what is in it is this user's and named by us. Standard library only.
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

_MODE = 0o666  # of files, without what the umask takes away
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO in the place of the file would wait for a reader.
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
APPEND = os.O_CREAT | os.O_APPEND
LINK = "@"  # ends the name of a link, as "/" that of a folder

HasOurName = Callable[[str], bool]  # of a path below a folder


# Files


@contextlib.contextmanager
def whole(path: Path, *, mode: int = _MODE, dir_fd: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file that takes its place only when it is complete (temporary name, fsync, rename).

    Its mode is there from the start, also if there is an older file with another one. Raises
    OSError if it cannot be written, for example on a full disk; what was written is gone.
    """
    place = _place(path, dir_fd)
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=mode, dir_fd=dir_fd)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, _place(place, dir_fd), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        delete(temporary, dir_fd=dir_fd)
        raise


def write_whole(
    path: Path, content: str | bytes, *, mode: int = _MODE, dir_fd: int | None = None
) -> None:
    """Write a file atomically: a reader sees the old or the new content."""
    with whole(path, mode=mode, dir_fd=dir_fd) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def open_to_write(path: Path, flags: int, *, mode: int = _MODE) -> int:
    """Open a regular file for writing in its place, and return the descriptor."""
    is_devnull = os.fspath(path) == os.devnull  # torch's name for no log
    handle = os.open(path if is_devnull else _place(path, None), _WRITE | flags, mode)
    if is_devnull or stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise _not_regular(path)


def append(path: Path) -> IO[bytes]:
    """Open a regular file for appending."""
    return os.fdopen(open_to_write(path, APPEND), "ab")


def delete(path: Path, *, dir_fd: int | None = None) -> None:
    """Delete a regular file, or a link; nothing if there is none.

    Raises OSError for anything else.
    """
    with contextlib.suppress(FileNotFoundError):
        kind = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
            raise _not_regular(path)
        os.unlink(path, dir_fd=dir_fd)


def rename(path: Path, new: Path) -> None:
    """Give a file, a link or a folder another name, that of no folder and no device."""
    with contextlib.suppress(FileNotFoundError):
        kind = os.lstat(new).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
            raise _not_regular(new)
    os.replace(path, new)


def _place(path: Path, dir_fd: int | None) -> Path:
    """Return where a file is written: at its path, or where a link of this user's or root's leads.

    Raises OSError if anything but a regular file is there.
    """
    try:
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        if dir_fd is None and _is_trusted_link(status):
            path = Path(os.path.realpath(path))
            status = os.lstat(path)
    except FileNotFoundError:
        return path
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path)
    return path


def _is_trusted_link(status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode) and status.st_uid in (os.geteuid(), 0)


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", str(path))


# Folders


@contextlib.contextmanager
def folder(path: Path | str, *, dir_fd: int | None = None) -> Iterator[int]:
    """Open a folder of this user's, which is no link; yield its descriptor.

    Raises OSError for anything else.
    """
    try:
        handle = os.open(path, _FOLDER, dir_fd=dir_fd)
    except NotADirectoryError:
        raise OSError(errno.ELOOP, "a link, or no folder", str(path)) from None
    try:
        if not is_ours(os.fstat(handle), handle):
            raise PermissionError(errno.EPERM, "it is another user's", str(path))
        yield handle
    finally:
        os.close(handle)


def is_ours(status: os.stat_result, handle: int) -> bool:
    """Return whether an open folder, or an entry of it, is this user's.

    A file server may take root, or everybody, for another user: a new file is then that one's too.
    """
    if status.st_uid == os.geteuid():
        return True
    place = f"/proc/self/fd/{handle}"
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=place) as file:
        return os.fstat(file.fileno()).st_uid == status.st_uid
    return False


def size_of(path: Path, has_our_name: HasOurName) -> int:
    """Return the bytes that ``delete_folder`` frees; raise OSError where it deletes nothing."""
    with folder(path) as handle:
        return _walk(handle, "", has_our_name, deletes=False)


def delete_folder(path: Path, has_our_name: HasOurName, *, trash: str = "") -> None:
    """Delete a folder in which everything is this user's and has a name of ours.

    It is first renamed to ``trash``, if that is given. Raises OSError if anything else is in it,
    and deletes nothing.
    """
    is_trusted = _is_trusted_link(os.lstat(path.parent))
    parent = os.open(path.parent, _FOLDER & ~os.O_NOFOLLOW if is_trusted else _FOLDER)
    try:
        with folder(path.name, dir_fd=parent) as handle:
            _walk(handle, "", has_our_name, deletes=False)
            if trash:
                os.rename(path.name, trash, src_dir_fd=parent, dst_dir_fd=parent)
            _walk(handle, "", has_our_name, deletes=True)
        os.rmdir(trash or path.name, dir_fd=parent)
    finally:
        os.close(parent)


def delete_empty(path: Path) -> None:
    """Delete an empty folder; raise OSError for anything else."""
    os.rmdir(path)


def _walk(handle: int, prefix: str, has_our_name: HasOurName, *, deletes: bool) -> int:
    """Return the bytes of the files in an open folder, and perhaps delete them."""
    num_bytes = 0
    with os.scandir(handle) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        status = os.stat(name, dir_fd=handle, follow_symlinks=False)
        kind = {stat.S_IFREG: "", stat.S_IFDIR: "/", stat.S_IFLNK: LINK}
        path = f"{prefix}{name}{kind.get(stat.S_IFMT(status.st_mode), '?')}"
        if not has_our_name(path) or not is_ours(status, handle):
            raise PermissionError(errno.EPERM, f"{path} in it is not a file of paceline's", path)
        if stat.S_ISDIR(status.st_mode):
            with folder(name, dir_fd=handle) as inner:
                num_bytes += _walk(inner, path, has_our_name, deletes=deletes)
            if deletes:
                os.rmdir(name, dir_fd=handle)
        else:
            num_bytes += status.st_size
            if deletes:
                os.unlink(name, dir_fd=handle)
    return num_bytes
