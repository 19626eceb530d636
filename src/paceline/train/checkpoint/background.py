"""Run one piece of work at a time on a separate thread, and raise its errors in the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable

_NAME = "paceline-checkpoint"


def await_all() -> None:
    """Wait for all work of this process; errors are raised in the caller that started the work."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


class Background:
    """Runs work while its caller continues; ``wait`` raises the work's exception."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether work is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Start work; the previous work must have been waited for."""
        assert self._thread is None
        # Not a daemon thread: a script ends only after its last checkpoint is committed.
        self._thread = threading.Thread(target=self._run, args=(work,), name=_NAME)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done, and raise its exception, once."""
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
