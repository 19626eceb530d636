"""Write what ``paceline verify`` compares: a JSON object a line, one file for each rank."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 26


class RecordFile:
    """A file of records, each of which has a kind and values.

    What is written is on its way at once, because a trial ends its ranks without warning. A record
    that does not fit the limit, or the disk, ends the file: the run must continue.

    Args:
        path: The file, which must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._process = os.getpid()
        self._left = _MOST_BYTES

    def write(self, kind: str, **values: Any) -> None:
        """Write a record; a forked child, such as a loader's worker, writes none."""
        if os.getpid() != self._process or self._left <= 0:
            return
        line = json.dumps({"kind": kind, **values}).encode() + b"\n"
        self._left -= len(line)
        try:
            if self._left > 0:
                self._file.write(line)
        except OSError:
            self._left = 0
