"""Calls to the operating system that Python's library lacks, such as Linux's prctl.

On other systems they do nothing and return False.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import stat
import sys
import tempfile
from collections.abc import Collection

from paceline.machine import processes

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_TGKILL = {"x86_64": 234, "aarch64": 131}  # the system call's number
_HIGH = 1 << 14  # the highest number at which a descriptor is kept: a fork copies all below it
_ROOM = 8  # descriptors that a process keeps there, at most

# Loaded once, before any fork: in a child, the lookup could need a lock that another thread held.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def memory_file(name: str) -> int:
    """Return the descriptor of an empty file without a name; writes append."""
    if sys.platform == "linux":
        handle = os.memfd_create(name)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    fcntl.fcntl(handle, fcntl.F_SETFL, os.O_APPEND)
    return handle


def moved_up(handle: int) -> int:
    """Return a descriptor that replaces one, above those that ``os.closerange(3, 1024)`` closes.

    Programs also close all up to their limit, so it is above a usual limit where that may be
    raised. It is not inherited by programs that are executed.
    """
    if handle < 0:
        return handle
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(limit, most - _ROOM, _HIGH)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number + _ROOM, most))
        moved = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, number)
        os.close(handle)
    except (OSError, ValueError):
        os.set_inheritable(handle, False)
        return handle
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    return moved


def redirected_stderr() -> str:
    """Return the file to which the script has redirected stderr; empty if it has not."""
    try:
        handle = sys.stderr.fileno()
        is_file = stat.S_ISREG(os.fstat(handle).st_mode)  # the launcher's are pipes and terminals
        return os.readlink(f"/proc/self/fd/{handle}") if is_file else ""
    except (AttributeError, OSError, ValueError):  # a stream without a file, or a closed one
        return ""


def die_with_parent(signum: int) -> bool:
    """Request a signal from the kernel for the time when the parent thread ends."""
    return _prctl(_PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> bool:
    """Become the parent of all descendants whose own parent ends."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_sessions(leaders: Collection[int]) -> None:
    """Kill all processes of some sessions, even if the session leaders have ended."""
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # the entry's process has ended, or it is not a process
            if entry.isdigit() and os.getsid(int(entry)) in leaders:
                os.kill(int(entry), signal.SIGKILL)


def kernel_wait(pid: int) -> str:
    """Return the kernel function of an uninterruptible wait (state D); empty in other states."""
    if not processes.status(pid).get("State", "").startswith("D"):
        return ""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", encoding="utf-8") as file:
        place = file.read().strip()
        if place not in ("", "0"):
            return place
    return "an unknown place"


def set_name(name: str) -> bool:
    """Set the short name in ``ps -o comm``, at most 15 bytes."""
    if _libc is None:
        return False
    return int(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)) == 0


def signal_main_thread(pid: int, signum: int) -> bool:
    """Send a signal to the main thread of a process: no other thread handles it."""
    number = _TGKILL.get(os.uname().machine)
    return _libc is not None and number is not None and not _libc.syscall(number, pid, pid, signum)


def flush_c_streams() -> None:
    """Flush the buffers of C code for stdout and stderr."""
    if _libc is not None:
        _libc.fflush(None)


def _prctl(option: int, value: int) -> bool:
    return _libc is not None and int(_libc.prctl(option, value, 0, 0, 0)) == 0
