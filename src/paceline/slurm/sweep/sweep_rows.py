"""A sweep as rows of ``paceline jobs``: one for all of it, and one for each element.

``summarize``, ``order`` and ``causes`` decide what is shown.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_OK, Finding, UsageError, closest
from paceline.rundir import sweeps
from paceline.rundir.files import RunDir, display_path
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import job_states
from paceline.slurm.job_states import States
from paceline.slurm.jobs import run_rows
from paceline.slurm.jobs.run_rows import CANCELLED, PENDING, RUNNING, SUCCEEDED, RunRow
from paceline.slurm.record import JobRecord
from paceline.slurm.sweep import sweep_folder
from paceline.slurm.sweep.definition import array_text
from paceline.slurm.sweep.sweep_folder import Member
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.text.quoting import printable, word
from paceline.text.wording import aligned, fold, shorten

_VALUE = 14  # columns of a value; longer ones are shortened
_MOST_CAUSES = 4
_MOST_ELEMENTS = 60  # columns of a list of elements


@dataclass(frozen=True)
class ElementRow:
    """One element of a sweep."""

    index: int  # its index in the array
    values: Mapping[str, str]  # values of the parameters
    row: RunRow  # the row of its run
    job: JobRecord  # record of its job
    metrics: tuple[str, ...] = ()  # names of the metrics that it has logged
    metric: float | None = None  # last value of the metric that was asked for, None if it has none

    @property
    def is_alive(self) -> bool:
        """Whether the element waits in the queue or runs."""
        return self.row.is_alive

    @property
    def is_to_repeat(self) -> bool:
        """Whether the element has failed or is missing; not if it was cancelled, on purpose."""
        return not self.is_alive and self.row.state not in (SUCCEEDED, CANCELLED)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        first = {"index": self.index, "values": dict(self.values)}
        return {**first, **self.row.to_json(), "metric": self.metric}


@dataclass(frozen=True)
class SweepRows:
    """The elements of a sweep."""

    elements: tuple[ElementRow, ...]  # a row for each element, by its index
    silent: tuple[str, ...] = ()  # clusters that did not answer


def gather(
    folder: Path,
    sweep_record: SweepRecord,
    *,
    metric: str = "",  # name of a metric to read, empty for none
) -> SweepRows:
    """Ask Slurm about all elements of a sweep, and read their run folders."""
    members = sweep_folder.members(folder, sweep_record)
    states, silent = job_states.states(member.job for member in members)
    elements = tuple(element_row(member, states, metric=metric) for member in members)
    return SweepRows(elements, tuple(silent))


def element_row(member: Member, states: States, *, metric: str = "") -> ElementRow:
    """Return the row of an element."""
    table = run_rows.read_table(member.run_dir)
    return ElementRow(
        index=member.index,
        values=member.job.values,
        row=run_rows.row(member.run_dir, member.job, states, table=table),
        job=member.job,
        metrics=tuple(run_rows.columns_of(table)),
        metric=run_rows.last_value(table, metric) if metric else None,
    )


def total(run_dir: RunDir, sweep_record: SweepRecord, elements: Sequence[ElementRow]) -> RunRow:
    """Return the row of a whole sweep; its loss is the lowest of its elements."""
    losses = [element.row.loss for element in elements if _is_finite(element.row.loss)]
    return RunRow(
        run=run_dir.root.name,
        folder=str(run_dir.root),
        job=sweep_record.jobs[-1] if sweep_record.jobs else "",
        state=summarize(elements),
        nodes="",
        step=None,
        loss=min((loss for loss in losses if loss is not None), default=None),
        since_s=sweep_record.submitted_ns / 1e9,
        is_alive=any(element.is_alive for element in elements),
    )


def summarize(elements: Sequence[ElementRow]) -> str:
    """Return the state of a sweep in a few words: ``running 20/50, 2 failed``. Pure.

    The numbers are the elements that have succeeded, and all elements.
    """
    states = Counter(element.row.state for element in elements)
    num_failed = sum(element.is_to_repeat for element in elements)
    counts = {"failed": num_failed, "cancelled": states[CANCELLED]}
    rest = "".join(f", {count} {word}" for word, count in counts.items() if count)
    return f"{_state(elements)} {states[SUCCEEDED]}/{len(elements)}{rest}"


def say_cancelled(folder: Path, elements: Sequence[ElementRow]) -> str:
    """Return which elements were cancelled, and how they are submitted again; empty without. Pure.

    They have not failed, and ``--again failed`` leaves them out.
    """
    indices = [element.index for element in elements if element.row.state == CANCELLED]
    if not indices:
        return ""
    again = f"paceline submit --again {array_text(indices)} {word(display_path(folder))}"
    return (
        f"{len(indices)} of {len(elements)} elements were cancelled; to submit them again: {again}"
    )


def _state(elements: Sequence[ElementRow]) -> str:
    alive = [element.row.state for element in elements if element.is_alive]
    if alive:
        return PENDING if all(state == PENDING for state in alive) else RUNNING
    return SUCCEEDED if all(element.row.state == SUCCEEDED for element in elements) else "ended"


def order(
    elements: Sequence[ElementRow], *, metric: str, descending: bool
) -> tuple[ElementRow, ...]:
    """Return elements sorted by a metric, those without a finite value last. Pure.

    Raises UsageError if elements have metrics, and none has this one.
    """
    if not metric:
        return tuple(elements)
    logged = list(dict.fromkeys(name for element in elements for name in element.metrics))
    if logged and metric not in logged:
        raise UsageError(_unknown_metric(metric, logged))
    with_value = [element for element in elements if _is_finite(element.metric)]
    others = [element for element in elements if not _is_finite(element.metric)]
    with_value.sort(key=lambda element: element.metric or 0.0, reverse=descending)
    return (*with_value, *others)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _unknown_metric(metric: str, logged: Sequence[str]) -> Finding:
    near = closest(metric, logged) or logged[-1]
    return Finding(
        "option-invalid",
        f"--sort {metric}: no element has logged {metric}",
        where="command line",
        evidence=(f"logged: {', '.join(logged[:12])}",),
        fix=f"--sort {near}",
    )


def causes(elements: Sequence[ElementRow]) -> list[tuple[str, tuple[int, ...]]]:
    """Return why elements have failed, and which, the most frequent first. Pure."""
    by_cause: dict[str, list[int]] = {}
    for element in elements:
        if element.is_to_repeat:
            cause = element.row.cause or f"{element.row.state}, and its run has recorded no cause"
            by_cause.setdefault(cause, []).append(element.index)
    ranked = sorted(by_cause.items(), key=lambda item: (-len(item[1]), item[1]))
    return [(cause, tuple(indices)) for cause, indices in ranked]


def show(
    folder: Path,
    sweep_record: SweepRecord,
    *,
    as_json: bool,  # whether data for a program are wanted
    metric: str,  # name of the metric by which the elements are sorted, empty for their index
    descending: bool,  # whether the largest value comes first
) -> int:
    """Print the elements of a sweep; returns the exit status of the command.

    Raises UsageError if no element has logged the metric.
    """
    rows = gather(folder, sweep_record, metric=metric)
    say_silent(rows.silent)
    elements = order(rows.elements, metric=metric, descending=descending)
    if as_json:
        print_json(elements)
        return EXIT_OK
    print(render(elements, parameters=sweep_record.parameters, metric=metric))
    sys.stdout.flush()
    for finding in findings(folder, elements):
        terminal.show(finding.render(), sys.stderr)
    if cancelled := say_cancelled(folder, elements):
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
    grouped_causes = causes(elements)
    path = display_path(folder)
    more = len(grouped_causes) - _MOST_CAUSES
    grouped = []
    for number, (cause, indices) in enumerate(grouped_causes[:_MOST_CAUSES]):
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
