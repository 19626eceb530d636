"""The CPython bug that lets forked DataLoader workers wait forever, and the affected versions.

CPython gh-112275: ``PyOS_AfterFork_Child`` acquires the interpreter's HEAD_LOCK before it
reinitializes that lock. If another thread of the parent held the lock during the fork, which
torch's threads do whenever they enter or leave the interpreter, no thread in the child can release
it. Fixed in 3.10.15 and 3.11.10; 3.12 never had it. Standard library only.
"""

from __future__ import annotations

import platform
import sys

ISSUE = "CPython gh-112275"
# By minor version of Python 3: the first release with the fix.
_FIXED = {8: 20, 9: 20, 10: 15, 11: 10}


def has_bug(version: tuple[int, ...] | None = None, *, implementation: str = "") -> bool:
    """Return whether a Python can deadlock in the child of a fork; only CPython has the bug."""
    major, minor, micro = (version or sys.version_info)[:3]
    is_cpython = (implementation or sys.implementation.name) == "cpython"
    if not is_cpython or sys.platform == "win32":
        return False
    return major == 3 and micro < _FIXED.get(minor, 0)


def newer(version: tuple[int, ...] | None = None) -> str:
    """Return the versions with the fix, as text: ``3.11.10 or 3.12``."""
    minor = (version or sys.version_info)[1]
    return f"3.{minor}.{_FIXED[minor]} or 3.12" if minor in _FIXED else "3.12"


def this() -> str:
    """Return the name of this Python: ``Python 3.11.7``."""
    return f"Python {platform.python_version()}"
