"""Loggers: where the numbers go that a script logs. Session calls them on rank 0 only.

Both write at the first number and not before, so that they can be made on every rank; both have it on its way to the
disk when ``log`` returns.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from paceline.errors import Finding, SetupError, UsageError, closest
from paceline.rundir.files import RunDir, write_whole

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

STEP = "step"  # name of the first column


class Logger(Protocol):
    """Anything with these two methods."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Take down numbers by name."""

    def close(self) -> None:
        """Write what is still to be written; nothing is logged afterwards."""


NAMES = ("csv", "tensorboard")


def of_name(asked: Logger | str, run_dir: RunDir) -> Logger:
    """Return the logger of a name, in a run folder; or the one that was given.

    Raises:
        UsageError: There is none of this name.
        SetupError: TensorBoard is not installed.
    """
    if not isinstance(asked, str):
        return asked
    if asked not in NAMES:
        near = closest(asked, NAMES) or "csv"
        what = f"{asked!r} is not one of {', '.join(NAMES)}"
        raise UsageError(Finding("option-invalid", what, where="Session(loggers=...)", fix=f'loggers=["{near}"]'))
    return CSVLogger(run_dir.metrics) if asked == "csv" else TensorBoardLogger(run_dir.tensorboard)


class CSVLogger:
    """A table: a row for each call of ``log``, a column for each name.

    A new name makes a new column, for which the file is written anew, as a whole. Otherwise rows are appended, each
    flushed, so that a crash loses at most the row that it interrupts. A run that goes on appends to its file. Rows
    that it logged before, beyond the checkpoint from which it goes on, are kept, because they were measured: where a
    step occurs twice, the last row belongs to the weights that were kept.

    Args:
        path: The file; its folder is made.
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
        self.close()  # nobody has to close it: a script may drop its session

    def close(self) -> None:
        """Close the file; a later ``log`` appends to it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        """Go on in the file that may be there, without a last line that was cut off."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        self._columns = next(csv.reader(io.StringIO(whole)), [STEP])
        if whole != text:
            write_whole(self.path, whole)
        self._file = self.path.open("a", encoding="utf-8", newline="")
        return self._file

    def _widen(self, names: list[str]) -> TextIO:
        self.close()
        rows = []
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.reader(file))[1:]
        self._columns += names
        padded = [row + [""] * (len(self._columns) - len(row)) for row in rows]
        write_whole(self.path, "".join(map(_line, [self._columns, *padded])))
        return self._open()


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


class TensorBoardLogger:
    """TensorBoard's event files, one for each process that logged.

    Args:
        folder: Where they are written; ``tensorboard --logdir FOLDER`` shows them.

    Raises:
        SetupError: tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._writer: SummaryWriter | None = None
        if importlib.util.find_spec("tensorboard") is None:
            raise SetupError(
                Finding(
                    "module-not-found",
                    "TensorBoardLogger needs tensorboard, which is not installed",
                    where="TensorBoardLogger(...)",
                    fix='pip install "paceline[tensorboard]"',
                )
            )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write each number as a scalar."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(os.fspath(self.folder))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file; a later ``log`` begins another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
