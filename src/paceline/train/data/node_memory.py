"""Hold arrays once for each node: ranks that have the same array share one copy of it.

The copy is in a file without a name (``memfd_create``), which the kernel frees with the last
process that uses it, also after SIGKILL. ``/dev/shm`` is not used, because a container limits it to
64 MB by default. Ranks find the file over the store of the process group, by a digest of the
content: what they share is certain to be equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import sys
import time
import weakref
from typing import Any

import numpy as np

from paceline.train import runtime

LEAST_BYTES = 1 << 20  # smaller arrays are not worth a search
WAIT_S = 300.0  # how long to wait for another rank's copy; then this rank keeps its array
LOOK_S = 0.02
_PREFIX = "paceline-"


def shared(array: np.ndarray) -> np.ndarray:
    """Return an equal array in memory that all ranks of this node share.

    It returns the array itself if there is nobody to share with: without a process group, where
    the system has no ``memfd_create``, and for arrays below 1 MiB and memory maps. The returned
    copy is read-only, since a write would change it for all ranks.
    """
    has_others = runtime.num_ranks() > 1 and sys.platform == "linux"
    if not has_others or array.nbytes < LEAST_BYTES or is_mapped(array):
        return array
    array = np.ascontiguousarray(array)
    digest = _digest_of(array)
    key = f"paceline/arrays/{_pid_namespace()}/{digest}"
    store = runtime.store()
    me = secrets.token_hex(8)
    if store.claim(f"{key}/owner", me).decode() == me:
        return _share_own(array, store, key, digest)
    path = _path_of_other(store, key)
    if path is None:
        return array
    with contextlib.suppress(OSError):  # another user's process, or one that has just ended
        return _mapped(path, array, digest)
    return array


def is_mapped(array: np.ndarray) -> bool:
    """Return whether an array is a view of a file that is mapped into memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return isinstance(base, mmap.mmap)


def _share_own(array: np.ndarray, store: Any, key: str, digest: str) -> np.ndarray:
    """Copy this rank's array to a file without a name, and publish it."""
    try:
        number = os.memfd_create(_PREFIX + digest)
        path = f"/proc/{os.getpid()}/fd/{number}"
        with os.fdopen(number, "wb", closefd=False) as file:
            file.write(array.reshape(-1).view(np.uint8).data)
        copy = _mapped(path, array, digest)
        # Ranks that have mapped the file keep it; one that comes later keeps its own array.
        weakref.finalize(copy.base, os.close, number)
    except OSError:  # no memory left
        path, copy = "", array
    store.set(f"{key}/path", path)
    return copy


def _path_of_other(store: Any, key: str) -> str | None:
    """Return the path of the file that another rank has made; None if there is none."""
    end_s = time.monotonic() + WAIT_S
    while (path := store.find(f"{key}/path")) is None:
        if time.monotonic() > end_s:
            return None
        time.sleep(LOOK_S)
    return path.decode() or None


def _mapped(path: str, like: np.ndarray, digest: str) -> np.ndarray:
    """Return the content of a file as a read-only array, of another array's type and shape.

    Raises OSError if it is not this user's file with that digest: the process that made it may have
    ended, and its number may belong to another one by now.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a stranger may have named a pipe
    with open(number, "rb"):
        name, status = os.readlink(f"/proc/self/fd/{number}"), os.fstat(number)
        is_it = name.startswith(f"/memfd:{_PREFIX}{digest}") and status.st_uid == os.geteuid()
        if not is_it or status.st_size != like.nbytes:
            raise FileNotFoundError(path)
        memory = mmap.mmap(number, like.nbytes, access=mmap.ACCESS_READ)
    # ndarray and not frombuffer, so that the array's base is the map.
    copy: np.ndarray = np.ndarray(like.shape, like.dtype, memory)
    return copy


def _digest_of(array: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=16)
    digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _pid_namespace() -> str:
    """Return a name for the processes that see each other's files under ``/proc``."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
