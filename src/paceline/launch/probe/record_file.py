"""Write what ``paceline verify`` compares: a JSON object a line, one file for each rank."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAULT = "fault"  # kind of the record with which an incomplete file ends
_MOST_BYTES = 1 << 26


class RecordFile:
    """A file of records, each of which has a kind and values.

    What is written is on its way at once, because a trial ends its ranks without warning. A record
    that does not fit the limit ends the file, and says so: the run must continue.
    """

    def __init__(
        self,
        path: Path,  # must not exist
    ) -> None:
        self._file = path.open("xb", buffering=0)
        self._process = os.getpid()
        self._left = _MOST_BYTES

    def write(self, kind: str, **values: Any) -> None:
        """Write a record; a forked child, such as a loader's worker, writes none."""
        if os.getpid() != self._process or self._left <= 0:
            return
        line = json.dumps({"kind": kind, **values}).encode() + b"\n"
        self._left -= len(line)
        if self._left <= 0:
            line = json.dumps({"kind": FAULT, "what": "the records are too long"}).encode() + b"\n"
        try:
            self._file.write(line)
        except OSError:
            self._left = 0

    def close(self) -> None:
        """Close the file; what is written from now on is dropped."""
        self._left = 0
        self._file.close()

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records an exception of this one, which ends the file.

        What a script reads and trains may be of any type, and its run must continue.
        """

        @functools.wraps(function)
        def record_fault(*args: Any, **kwargs: Any) -> Any:
            if self._left <= 0:
                return None
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.write(FAULT, what=f"{type(error).__name__}: {error}")
                self._left = 0
                return None

        return record_fault
