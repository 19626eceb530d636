"""The few calls to the operating system that Python's library lacks: Linux's prctl.

Elsewhere they do nothing and say so by returning False.
"""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

# Looked up once, before any fork: a lookup in a child could need a lock that another thread held.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(signum: int) -> bool:
    """Ask the kernel for a signal when the thread that started this process ends."""
    return _prctl(_PR_SET_PDEATHSIG, signum)


def adopt_orphans() -> bool:
    """Become the parent of all descendants whose own parent ends."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> bool:
    """Set the short name that ``ps -o comm`` shows, at most 15 bytes."""
    if _libc is None:
        return False
    return int(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)) == 0


def flush_c_streams() -> None:
    """Flush what C code has buffered for stdout and stderr."""
    if _libc is not None:
        _libc.fflush(None)


def _prctl(option: int, value: int) -> bool:
    return _libc is not None and int(_libc.prctl(option, value, 0, 0, 0)) == 0
