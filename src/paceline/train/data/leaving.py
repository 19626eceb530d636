"""Release persistent workers at the end of a process, before torch waits for them."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Holder(Protocol):
    """An object that holds workers."""

    def release(self) -> None:
        """Release the workers."""


_with_workers: weakref.WeakSet[Holder] = weakref.WeakSet()


def release_at_exit(loader: Holder) -> None:
    """Release a loader's workers at the end of the process, if the loader still exists."""
    # Registered again each time, so that it runs before torch's own exit handlers, which are
    # registered when workers start. Those wait five seconds for each worker, and then send SIGTERM,
    # which our workers survive for a while.
    _with_workers.add(loader)
    atexit.unregister(_release_all)
    atexit.register(_release_all)


def _release_all() -> None:
    for loader in list(_with_workers):
        loader.release()
