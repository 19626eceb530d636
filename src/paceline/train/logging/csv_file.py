"""A table of the numbers that a script logs: ``metrics.csv``."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from paceline.rundir import owned
from paceline.rundir.files import open_file

STEP = "step"  # name of the first column


class CSVLogger:
    """A table: a row for each call of ``log``, a column for each name.

    A new name adds a column, which rewrites the whole file. Otherwise rows are appended and
    flushed, so that a crash loses at most the row that it interrupts. A resumed run appends to its
    file. Earlier rows beyond the checkpoint are kept, because they were measured: if a step occurs
    twice, the last row belongs to the weights that were kept.

    Args:
        path: The file; its folder is created.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._columns: list[str] = []
        self._file: TextIO | None = None

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Append a row."""
        file = self._file or self._open()
        new = [name for name in values if name not in self._columns]
        if new:
            file = self._widen(new)
        file.write(_line([step, *(values.get(name, "") for name in self._columns[1:])]))
        file.flush()

    def __del__(self) -> None:
        self.close()  # closing is optional: a script may drop its session

    def close(self) -> None:
        """Close the file; a later ``log`` appends to it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        """Open the file for appending, and remove an incomplete last line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self._read()
        whole = text[: text.rfind("\n") + 1]
        self._columns = next(csv.reader(io.StringIO(whole)), [STEP])
        if whole != text:
            owned.write_whole(self.path, whole)
        self._file = io.TextIOWrapper(owned.append(self.path), encoding="utf-8", newline="")
        return self._file

    def _read(self) -> str:
        if not self.path.exists():
            return ""
        with open_file(self.path) as file:  # all of it, however long: it may be written again
            return file.read().decode("utf-8")

    def _widen(self, names: list[str]) -> TextIO:
        self.close()
        rows = list(csv.reader(io.StringIO(self._read(), newline="")))[1:]
        self._columns += names
        padded = [row + [""] * (len(self._columns) - len(row)) for row in rows]
        owned.write_whole(self.path, "".join(map(_line, [self._columns, *padded])))
        return self._open()


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
