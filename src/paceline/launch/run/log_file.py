"""The log file of a rank, whose loss does not affect the run.

A full disk or a deleted folder must not end a run. What cannot be written is dropped, the launcher
is notified once, and the last lines stay in memory because the final report may quote them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from paceline.rundir import owned

# The final report quotes only the end of a log.
_TAIL_BYTES = 16384
# A deleted file can still be written to. How often to check whether it has a name.
_NAME_CHECK_S = 0.5
DELETED = "it was deleted"
_TRACEBACK = b"Traceback (most recent call last)"

OnLoss = Callable[[str, str], None]


class LogFile:
    """A log file; ``on_loss`` is called with path and reason when output is first dropped."""

    def __init__(self, path: str, on_loss: OnLoss) -> None:
        self.path = path
        self.handle = -1
        self.users = 0
        self.traceback_ns = 0  # when a traceback last began in it, on the monotonic clock
        self._on_loss = on_loss
        self._tail = b""
        self._dropped = 0
        self._is_deleted = False
        self._next_check_s = 0.0

    @property
    def tail(self) -> str:
        """The last lines that were written, or dropped."""
        return self._tail.decode("utf-8", errors="replace")

    def open(self) -> None:
        """Open the file and create its folder; if that fails, output is dropped."""
        self.users += 1
        if self.handle >= 0:
            return
        self._is_deleted = False
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            self.handle = owned.open_to_write(Path(self.path), owned.APPEND)
        except OSError as error:
            self._lose(0, str(error.strerror))

    def close(self) -> None:
        """Close the file after its last user."""
        self.users -= 1
        if self.users == 0 and self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    def write(self, data: bytes) -> None:
        """Append data; never raises."""
        self._tail = (
            data[-_TAIL_BYTES:] if len(data) >= _TAIL_BYTES else (self._tail + data)[-_TAIL_BYTES:]
        )
        if _TRACEBACK in data:
            self.traceback_ns = time.monotonic_ns()
        if self.handle < 0 or self._has_no_name():
            self._dropped += len(data)
            return
        if self._dropped:
            self._note_gap()
        while data:
            try:
                data = data[os.write(self.handle, data) :]
            except OSError as error:
                self._lose(len(data), str(error.strerror))
                return

    def _has_no_name(self) -> bool:
        """Return whether the file was deleted.

        Writing to a deleted file would fill a disk with data that nobody can read.
        """
        now_s = time.monotonic()
        if not self._is_deleted and now_s >= self._next_check_s:
            self._next_check_s = now_s + _NAME_CHECK_S
            with contextlib.suppress(OSError):
                self._is_deleted = os.fstat(self.handle).st_nlink == 0
            if self._is_deleted:
                self._lose(0, DELETED)
        return self._is_deleted

    def _note_gap(self) -> None:
        """Write a note about the missing output, once there is space again."""
        note = f"\n[paceline: {self._dropped} bytes of output could not be written here]\n"
        with contextlib.suppress(OSError):
            if os.write(self.handle, note.encode()) == len(note):
                self._dropped = 0

    def _lose(self, size: int, reason: str) -> None:
        self._dropped += size
        self._on_loss(self.path, reason)
