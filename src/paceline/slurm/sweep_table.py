"""``paceline jobs SWEEP``: the elements of a sweep with their values, and why some have failed.

``render`` decides how it looks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import EXIT_OK, Finding
from paceline.rundir import sweeps
from paceline.rundir.files import display_path
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import sweep_rows
from paceline.slurm.sweep_rows import ElementRow
from paceline.text import terminal
from paceline.text.quoting import printable, word
from paceline.text.table import aligned
from paceline.text.wording import fold, shorten

_VALUE = 14  # columns of a value; longer ones are shortened
_MOST_CAUSES = 4
_MOST_ELEMENTS = 60  # columns of a list of elements


def show(
    folder: Path, sweep_record: SweepRecord, *, as_json: bool, metric: str, descending: bool
) -> int:
    """Print the elements of a sweep; returns the exit status of the command.

    Args:
        folder: The folder of the sweep.
        sweep_record: Its record.
        as_json: Whether data for a program are wanted.
        metric: Name of the metric by which the elements are sorted, empty for their index.
        descending: Whether the largest value comes first.

    Raises:
        UsageError: No element has logged the metric.
    """
    rows = sweep_rows.gather(folder, sweep_record, metric=metric)
    say_silent(rows.silent)
    elements = sweep_rows.order(rows.elements, metric=metric, descending=descending)
    if as_json:
        print(json.dumps([element.to_json() for element in elements], indent=1))
        return EXIT_OK
    print(render(elements, parameters=sweep_record.parameters, metric=metric))
    sys.stdout.flush()
    for finding in findings(folder, elements):
        terminal.show(finding.render(), sys.stderr)
    if cancelled := sweep_rows.say_cancelled(folder, elements):
        terminal.say(printable(cancelled))
    return EXIT_OK


def say_silent(clusters: Sequence[str]) -> None:
    """Print a line for each cluster whose squeue does not answer."""
    for cluster in clusters:
        where = f"for cluster {cluster}" if cluster else "here"
        terminal.say(
            printable(f"squeue does not answer {where}: states are those of the run folders")
        )


def render(elements: Sequence[ElementRow], *, parameters: Sequence[str], metric: str) -> str:
    """Return the table of the elements. Pure."""
    shows_metric = bool(metric) and metric != "loss"
    columns = ["element", *parameters, "state", "step", "loss"]
    if shows_metric:
        columns.append(metric)
    cells = [_cells(element, parameters, shows_metric=shows_metric) for element in elements]
    right = {"element", "step", "loss", metric}
    lines = aligned(
        [printable(name) for name in columns],
        [[shorten(printable(cell), _VALUE) for cell in row] for row in cells],
        right=right,
    )
    return "\n".join(lines)


def _cells(element: ElementRow, parameters: Sequence[str], *, shows_metric: bool) -> list[str]:
    row = element.row
    cells = [
        str(element.index),
        *(element.values.get(name, "-") for name in parameters),
        row.state,
        "-" if row.step is None else str(row.step),
        _number(row.loss),
    ]
    return [*cells, _number(element.metric)] if shows_metric else cells


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def findings(folder: Path, elements: Sequence[ElementRow]) -> list[Finding]:
    """Return why elements have failed: a finding for each cause, the most frequent first. Pure."""
    causes = sweep_rows.causes(elements)
    path = display_path(folder)
    more = len(causes) - _MOST_CAUSES
    grouped = []
    for number, (cause, indices) in enumerate(causes[:_MOST_CAUSES]):
        first = word(str(sweeps.folder_of(Path(path), indices[0])))
        elements_of = "element" if len(indices) == 1 else "elements"
        evidence = [f"paceline explain {first}"]
        if number == _MOST_CAUSES - 1 and more > 0:
            evidence.append(f"and {more} more causes")
        grouped.append(
            Finding(
                "sweep-elements-failed",
                f"{len(indices)} of {len(elements)} elements: {printable(cause)}",
                where=shorten(f"{elements_of} {fold(indices)}", _MOST_ELEMENTS),
                evidence=tuple(evidence),
                fix=f"paceline submit --again failed {word(path)}",
                severity="warning",
            )
        )
    return grouped
