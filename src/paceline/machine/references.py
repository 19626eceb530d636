"""Keep an object of Python until the process ends. Standard library only."""

from __future__ import annotations

import ctypes
import sys
from collections import Counter
from typing import Any

_kept: list[Any] = []


def keep_until_exit(thing: Any) -> None:
    """Never free an object, also not when the interpreter ends and clears all modules.

    For objects whose destructor is not safe. That of torch's gloo process groups is not (seen with
    torch 2.13): it joins gloo's threads while it holds the interpreter lock, for which one of them
    may wait, and at the end of a process it may end with "terminate called without an active
    exception" and SIGABRT, in a run whose work is done.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _kept.append(thing)


def kept() -> list[Any]:
    """Return the kept objects."""
    return _kept


def held_alone() -> list[Any]:
    """Return the kept objects to which nothing else refers."""
    times = Counter(map(id, _kept))  # each adds two references; the loop and the call add one each
    return [thing for thing in _kept if sys.getrefcount(thing) <= 2 * times[id(thing)] + 2]
