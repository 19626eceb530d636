"""Show the launcher which DataLoader worker a rank waits for, by two of the rank's counters.

It wraps the one method in which torch's DataLoader waits for a batch of its workers. Loaders
without workers do not call it, so they cost nothing more.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from paceline import counters
from paceline.machine.compiled import uncounted


def install(slot: memoryview[int]) -> Callable[[], None]:
    """Start writing which worker the rank waits for; return a function that stops it."""
    from torch import multiprocessing
    from torch.utils.data import dataloader

    iterators: Any = dataloader._MultiProcessingDataLoaderIter
    fetch, make = iterators._next_data, iterators.__init__
    # the launcher recognizes workers by the names of their threads
    names_workers = hasattr(multiprocessing, "_set_thread_name")
    rank = os.getpid()  # a worker with its own DataLoader shares the memory

    @functools.wraps(fetch)
    def noted_fetch(self: Any) -> Any:
        if not names_workers or os.getpid() != rank:
            return fetch(self)
        slot[counters.AWAITED_PID] = _awaited(self)
        slot[counters.AWAITED_NS] = monotonic_ns()
        try:
            return fetch(self)
        finally:
            slot[counters.AWAITED_NS] = 0

    @functools.wraps(make)
    def noted_make(self: Any, loader: Any) -> None:
        make(self, loader)
        if os.getpid() == rank and _forks_again(self, loader):
            slot[counters.FORKED_AGAIN] += 1

    def uninstall() -> None:
        iterators._next_data, iterators.__init__ = fetch, make

    iterators._next_data, iterators.__init__ = uncounted(noted_fetch), uncounted(noted_make)
    return uninstall


def _awaited(iterator: Any) -> int:
    """Return the process of the worker whose batch comes next, 0 for any worker's or if unknown."""
    try:
        worker, *received = iterator._task_info[iterator._rcvd_idx]
        if received or not iterator._in_order:
            return 0
        return iterator._workers[worker].pid or 0
    except (AttributeError, KeyError, IndexError, ValueError):
        return 0  # another torch keeps its books otherwise


def _forks_again(iterator: Any, loader: Any) -> bool:
    """Return whether a loader has forked workers for a loop, and not for its first."""
    first = iterator._workers[0] if iterator._workers else None
    if loader.persistent_workers or getattr(getattr(first, "_popen", None), "method", "") != "fork":
        return False
    has_forked: bool = getattr(loader, "_paceline_has_forked", False)
    loader._paceline_has_forked = True
    return has_forked
