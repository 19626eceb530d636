"""A run as a row of ``paceline jobs``: state, nodes, last step and loss.

Slurm's answer decides about jobs that it knows, the run folder about all others. Only the end of
every file is read, so that a thousand runs are listed in a second.
``judge`` decides which state a run is in.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.launch.outcome import evidence
from paceline.machine import processes
from paceline.rundir import events
from paceline.rundir.events import History
from paceline.rundir.files import RunDir, open_file
from paceline.slurm import job_states
from paceline.slurm.job_states import JobState
from paceline.slurm.record import JobRecord

# The header line of a table of metrics, and its last lines.
Table = tuple[str, Sequence[str]]

SUCCEEDED, RUNNING, PENDING, CANCELLED = "succeeded", "running", "pending", "cancelled"
_TAIL_BYTES = 1 << 14
_STEP = "step"
# The first of these columns is the loss, or else the first one whose name ends with "loss".
_LOSSES = ("loss", "train/loss", "train_loss", "loss/train", "train/loss_step", "train_loss_step")


@dataclass(frozen=True)
class RunRow:
    """One run, as a row of the table."""

    run: str  # name of the run folder
    folder: str  # path of the run folder
    job: str  # id of the Slurm job, empty if the run has none
    state: str  # state or outcome in one word
    nodes: str  # names of the nodes, or their number
    step: int | None  # last known step, None if there is none
    loss: float | None  # the last loss that was logged, None if there is none
    since_s: float | None  # when the state began, None if that is unknown
    reason: str = ""  # slurm's reason why the job waits
    cause: str = ""  # name and first sentence of the finding that ended the run; empty without one
    is_alive: bool = False  # whether the run waits in the queue or runs

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        values = asdict(self)
        del values["is_alive"]  # the state says it
        return values


def row(
    run_dir: RunDir,
    job: JobRecord | None,  # record of its Slurm job, None if it has none
    states: job_states.States,  # states of jobs by cluster and id
    *,
    table: Table | None = None,  # the end of its metrics, if that was already read
) -> RunRow:
    """Return the row of a run."""
    slurm = states.get((job.cluster, job.job_id)) if job is not None else None
    since_ns = job_states.last_start_ns(job, slurm) if job is not None else 0
    history = events.read_history(run_dir.root, since_ns=since_ns)
    submitted_s = job.submitted_ns / 1e9 if job else None
    state, since_s = judge(slurm, history, submitted_s=submitted_s, alive=processes.is_alive)
    logged_step, loss = last_figures(*(table or read_table(run_dir)))
    last = evidence.last_checkpoint(run_dir.checkpoints)
    # any of these may lag behind: metrics are logged rarely, events cover the last start only
    steps = (logged_step, last.step if last else None, history.steps, _counted_steps(run_dir))
    step = max((count for count in steps if count is not None), default=None)
    is_alive = state == RUNNING or (slurm is not None and not slurm.ended)
    has_cause = not is_alive and state != SUCCEEDED  # findings of a run that continues are old
    return RunRow(
        run=run_dir.root.name,
        folder=str(run_dir.root),
        job=job.job_id if job else "",
        state=state,
        nodes=_nodes(slurm, job, history),
        step=step,
        loss=loss,
        since_s=since_s,
        reason=slurm.reason if slurm and slurm.waits else "",
        cause=_cause(history) if has_cause else "",
        is_alive=is_alive,
    )


def _counted_steps(run_dir: RunDir) -> int | None:
    """Return the steps that the launcher has counted in its last start, None without any."""
    match = re.search(r'"steps": (\d+)', "".join(evidence.read_tail(run_dir.speed_log, lines=1)))
    return int(match[1]) if match else None


def _cause(history: History) -> str:
    findings = history.outcome.findings if history.outcome else ()
    return f"{findings[0].name}: {findings[0].what}" if findings else ""


def _nodes(slurm: JobState | None, job: JobRecord | None, history: History) -> str:
    """Return the names of a run's nodes, else the requested or the recorded number."""
    if slurm is not None and slurm.nodes:
        return slurm.nodes
    if job is not None and job.nodes:
        return job.nodes
    return str(history.nodes) if history.nodes else ""


def judge(
    slurm: JobState | None,  # state of the job in Slurm, None if Slurm does not know it
    history: History,  # the events in the run folder
    *,
    submitted_s: float | None,  # when the job was submitted, None if there is no job
    # returns whether a process of a host that started before a time is alive, None if that
    # is unknown
    alive: Callable[[str, int, float], bool | None] = lambda *_: None,
) -> tuple[str, float | None]:
    """Return a run's state in one word, and since when. Pure."""
    if slurm is not None and not slurm.ended:
        # a pending job's start is the expected one
        return slurm.state.lower(), submitted_s if slurm.waits else slurm.start_s
    outcome = history.outcome
    has_cause_in_slurm = slurm is not None and (slurm.broke or slurm.state == job_states.CANCELLED)
    if outcome is not None and not (has_cause_in_slurm and outcome.stopped):
        return outcome.word, outcome.time_ns / 1e9
    if slurm is not None:
        return SUCCEEDED if slurm.succeeded else slurm.state.lower(), slurm.start_s
    started_s = history.started_ns / 1e9 if history.started_ns else submitted_s
    return events.state_by_processes(history, alive), started_s


def read_table(run_dir: RunDir) -> Table:
    """Return the header and the last lines of the metrics of a run, empty without any."""
    try:
        with open_file(run_dir.metrics) as file:
            head = file.readline(_TAIL_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return "", ()
    whole = tail[: tail.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
    cut = size - len(head) > _TAIL_BYTES  # the first line of what was read has lost its beginning
    return head.decode("utf-8", "replace"), whole[1 if cut else 0 :]


def columns_of(table: Table) -> list[str]:
    """Return the names of the columns of a table."""
    return _split(table[0].rstrip("\r\n"))


def last_value(table: Table, name: str) -> float | None:
    """Return the last value in a column of a table, None if there is none."""
    return _last(columns_of(table), table[1], name)


def last_figures(head: str, lines: Sequence[str]) -> tuple[int | None, float | None]:
    """Return the last step and the last loss of a table. Pure."""
    columns = _split(head)
    last_step = _last(columns, lines, _STEP)
    step = int(last_step) if last_step is not None and math.isfinite(last_step) else None
    loss_column = _loss_column(columns)
    loss = _last(columns, lines, loss_column) if loss_column else None
    return step, loss


def _loss_column(columns: Sequence[str]) -> str:
    """Return the name of the column with the training loss, empty if there is none."""
    usual = [name for name in _LOSSES if name in columns]
    others = [
        name for name in columns if name.endswith("loss") and not name.startswith(("val", "test"))
    ]
    return next(iter(usual + others), "")


def _last(columns: Sequence[str], lines: Sequence[str], name: str) -> float | None:
    """Return the last value of a column, None if there is none: rows may leave columns empty."""
    if name not in columns:
        return None
    place = columns.index(name)
    for cells in map(_split, reversed(lines)):
        with contextlib.suppress(IndexError, ValueError):
            return float(cells[place])
    return None


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # NUL, in Python 3.10
        return []
