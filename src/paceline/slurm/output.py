"""A job's output as it grows, handed on to stdout. A hand.

It may not be there yet, come through a slow file server, or belong to several starts of one run.
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO

from paceline.rundir.files import RunDir

_CHUNK = 1 << 16
# In the output of one start after the other, a start begins with its plan and ends with one of these.
_PLAN = re.compile(rb"^paceline: [0-9-]+ nodes? x ", re.M)
_BLOCK = re.compile("^── paceline |^paceline: run folder ".encode(), re.M)


class Output:
    """A file that grows, and may not be there yet.

    Attributes:
        tail: The last bytes that were shown.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.job_output
        self._file: IO[bytes] | None = None
        self.tail = b""

    @property
    def is_open(self) -> bool:
        """The file is there."""
        return self._file is not None

    @property
    def has_block(self) -> bool:
        """The last lines of the run's last start are among those that were shown."""
        begins = max((match.start() for match in _PLAN.finditer(self.tail)), default=-1)
        return any(match.start() > begins for match in _BLOCK.finditer(self.tail))

    def show(self) -> bool:
        """Hand on what is new to stdout; True if there was something."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except OSError:
                return False
        has_new = False
        while chunk := self._read():
            has_new = True
            self.tail = (self.tail + chunk)[-_CHUNK:]
            out = getattr(sys.stdout, "buffer", None)
            if out is not None:
                out.write(chunk)
            else:  # a stream that somebody put in its place
                sys.stdout.write(chunk.decode("utf-8", "replace"))
        if has_new:
            sys.stdout.flush()
        return has_new

    def close(self) -> None:
        """Read no more."""
        if self._file is not None:
            self._file.close()

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0)  # written anew: a job script of somebody's own without --open-mode=append
            chunk = self._file.read(_CHUNK)
            if not chunk and not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                self._file.close()  # the name leads to the output of a later job
                self._file = self._path.open("rb")
                chunk = self._file.read(_CHUNK)
            return chunk
        except OSError:  # a file server that is away for a moment
            return b""
