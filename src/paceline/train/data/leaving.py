"""Workers that wait for another epoch, at the end of a process: they are let go before torch waits for them."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Holder(Protocol):
    """Who holds workers."""

    def release(self) -> None:
        """Let them go."""


_with_workers: weakref.WeakSet[Holder] = weakref.WeakSet()


def release_at_exit(loader: Holder) -> None:
    """Let a loader's workers go at the end of the process, if it is still there."""
    # Registered anew each time, so that it runs before torch's own exit handlers, which are as young as the workers:
    # those wait five seconds for each, and then send a SIGTERM that our workers outlive for a while.
    _with_workers.add(loader)
    atexit.unregister(_release_all)
    atexit.register(_release_all)


def _release_all() -> None:
    for loader in list(_with_workers):
        loader.release()
