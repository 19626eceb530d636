"""One piece of work at a time, on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

_NAME = "paceline-checkpoint"


def await_all() -> None:
    """Wait for all work of this process; what goes wrong is raised to its maker and not here."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


class Background:
    """Does a piece of work while its maker goes on; what it raises is raised to whoever waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a piece of work is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Begin with a piece of work; there must be none in progress."""
        assert self._thread is None
        # Not a daemon: the end of a script waits until its last checkpoint is committed.
        self._thread = threading.Thread(target=self._run, args=(work,), name=_NAME)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is done, and raise what went wrong, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error
