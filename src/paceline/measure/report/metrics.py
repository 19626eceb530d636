"""Read the numbers that a script logged: ``metrics.csv``, and TensorBoard's event files."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
from collections.abc import Iterable
from pathlib import Path

from paceline.measure.report.facts import Series
from paceline.rundir.files import RunDir, open_file

_STEP = "step"

Numbers = dict[str, dict[int, float]]


def read(run_dir: RunDir) -> tuple[dict[str, Series], list[str]]:
    """Return the logged numbers of a run by name, and sentences about what could not be read.

    A name that both files have is taken from the table.
    """
    notes: list[str] = []
    numbers = {**_of_tensorboard(run_dir.tensorboard, notes), **_of_table(run_dir.metrics, notes)}
    if not numbers and not notes:
        notes.append("no metrics: session.log and a Trainer write metrics.csv")
    return {name: _series(values) for name, values in numbers.items() if values}, notes


def _of_table(path: Path, notes: list[str]) -> Numbers:
    try:
        with open_file(path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
            return parse(text)
    except FileNotFoundError:
        return {}
    except (OSError, csv.Error) as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return {}


def parse(
    # a header with ``step`` as the first column, and a row for each call of ``log``
    lines: Iterable[str],
) -> Numbers:
    """Return the numbers of a table by name and step. Pure.

    A run that resumes repeats the steps after its checkpoint, and the last row of a step belongs to
    the weights that were kept. Cells that are not numbers are left out.

    Raises csv.Error if the text is not a table.
    """
    rows = csv.reader(lines)
    header = next(rows, [])
    if header[:1] != [_STEP]:
        return {}
    numbers: Numbers = {name: {} for name in header[1:]}
    for row in rows:
        step = _number(row[0]) if row else None
        if step is None or not step.is_integer():
            continue
        for name, cell in zip(header[1:], row[1:], strict=False):
            value = _number(cell)
            if value is not None:
                numbers[name][int(step)] = value
    return numbers


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _of_tensorboard(folder: Path, notes: list[str]) -> Numbers:
    """Return the scalars of TensorBoard's event files, if its package is there to read them."""
    if not folder.is_dir():
        return {}
    if importlib.util.find_spec("tensorboard") is None:
        notes.append(
            'tensorboard/ is not shown: pip install "paceline[tensorboard]" to read its files'
        )
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    numbers: Numbers = {}
    try:
        # 0 keeps all: by default TensorBoard draws a sample of 10,000.
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        for name in events.Tags()["scalars"]:
            # In the order of writing: a step that was repeated after a resume counts as last seen.
            numbers[name] = {event.step: event.value for event in events.Scalars(name)}
    except Exception as error:  # protobuf has other errors for a damaged file
        notes.append(f"tensorboard/ cannot be read: {type(error).__name__}")
    return numbers


def _series(values: dict[int, float]) -> Series:
    steps = sorted(values)
    return Series(tuple(steps), tuple(values[step] for step in steps))


def last_finite(series: Series) -> float | None:
    """Return the last finite value; None if there is none. Pure."""
    for value in reversed(series.values):
        with contextlib.suppress(OverflowError):
            if value - value == 0:  # neither an infinity nor NaN
                return value
    return None
