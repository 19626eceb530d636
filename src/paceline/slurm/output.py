"""Copy a job's output file to stdout as it grows.

The file may not exist yet, be delayed by a file server, or contain several starts of one run.
"""

from __future__ import annotations

import os
import re
import sys
from typing import IO

from paceline.rundir.files import RunDir

_CHUNK = 1 << 16
# A start begins with the line of its plan and ends with one of the lines of _BLOCK.
_PLAN = re.compile(rb"^paceline: [0-9-]+ nodes? x ", re.M)
_BLOCK = re.compile("^── paceline |^paceline: run folder ".encode(), re.M)


class Output:
    """A file that grows, and may not exist yet."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.job_output
        self._file: IO[bytes] | None = None
        self.tail = b""  # the last bytes that were shown

    @property
    def is_open(self) -> bool:
        """Whether the file has been opened."""
        return self._file is not None

    @property
    def has_block(self) -> bool:
        """Whether the final report of the run's last start has been shown."""
        begins = max((match.start() for match in _PLAN.finditer(self.tail)), default=-1)
        return any(match.start() > begins for match in _BLOCK.finditer(self.tail))

    def show(self) -> bool:
        """Copy new output to stdout, and return whether there was any."""
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
            else:  # stdout was replaced by a text stream
                sys.stdout.write(chunk.decode("utf-8", "replace"))
        if has_new:
            sys.stdout.flush()
        return has_new

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                # truncated by a job script of the user without --open-mode=append
                self._file.seek(0)
            chunk = self._file.read(_CHUNK)
            if not chunk and not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                self._file.close()  # the path now names the output of a later job
                self._file = self._path.open("rb")
                chunk = self._file.read(_CHUNK)
            return chunk
        except OSError:  # the file server may be unavailable for a moment
            return b""
