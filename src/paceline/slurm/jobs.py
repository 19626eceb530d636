"""``paceline jobs``: list the runs of a folder with state, nodes, last step and loss.

Slurm is queried once for all jobs; the run folder decides about runs that Slurm has forgotten or
never knew. Only the end of every file is read, so that hundreds of runs are listed quickly.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_OK, Finding, UsageError
from paceline.launch.outcome import evidence
from paceline.machine import processes
from paceline.rundir import events
from paceline.rundir.events import History
from paceline.rundir.files import RUNS, RunDir, open_file
from paceline.slurm import lookup, profile_files, record
from paceline.slurm.jobstate import JobState
from paceline.slurm.record import JobRecord
from paceline.text import terminal
from paceline.text.quoting import printable

_COLUMNS = ("run", "job", "state", "nodes", "step", "loss", "since")
_RIGHT = frozenset({"job", "step", "loss"})
_TAIL_BYTES = 1 << 14
_STEP = "step"
# The first of these columns is the loss, or else the first one whose name ends with "loss".
_LOSSES = ("loss", "train/loss", "train_loss", "loss/train", "train/loss_step", "train_loss_step")
_RUN_NAME = re.compile(r"^(\d{8}-\d{6})-")


@dataclass(frozen=True)
class Row:
    """One run, as a row of the table.

    Attributes:
        run: Name of the run folder.
        folder: Path of the run folder.
        job: Id of the Slurm job, empty if the run has none.
        state: State or outcome in one word.
        nodes: Names of the nodes, or their number.
        step: Last known step, None if there is none.
        loss: The last loss that was logged, None if there is none.
        since_s: When the state began, None if that is unknown.
        reason: Slurm's reason why the job waits.
    """

    run: str
    folder: str
    job: str
    state: str
    nodes: str
    step: int | None
    loss: float | None
    since_s: float | None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data; a loss that is not finite becomes None."""
        loss = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        return {**asdict(self), "loss": loss}


def jobs(folder: Path | None, *, as_json: bool) -> int:
    """Print the runs of a folder, the newest first, and return the exit status.

    Raises:
        UsageError: The folder does not exist.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(_no_folder(folder))
    runs = gather(*([folder] if folder is not None else profile_files.run_folders()))
    states, silent = lookup.states(job for _, job in runs if job is not None)
    for cluster in silent:
        where = f"for cluster {cluster}" if cluster else "here"
        _say(f"squeue does not answer {where}: states are those of the run folders")
    rows = [entry for run_dir, job in runs if (entry := _row(run_dir, job, states)) is not None]
    if as_json:
        print(json.dumps([entry.to_json() for entry in rows], indent=1))
    elif rows:
        print(render(rows))
    else:
        _say(f"no runs in {folder or RUNS}")
    return EXIT_OK


def _say(text: str) -> None:
    terminal.say(printable(text))


def _row(
    run_dir: RunDir, job: JobRecord | None, states: dict[tuple[str, str], JobState]
) -> Row | None:
    """Return the row of a run; None, after a line on stderr, if its folder cannot be read."""
    try:
        return row(run_dir, job, states)
    except Exception as error:  # the files may be damaged; the other runs are listed all the same
        _say(f"{run_dir.root} cannot be read: {type(error).__name__}: {error}")
        return None


def gather(*places: Path) -> list[tuple[RunDir, JobRecord | None]]:
    """Return the runs of folders with the records of their jobs, the newest first."""
    paths: list[Path] = []
    for folder in places:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            paths += [Path(entry.path) for entry in entries if entry.is_dir()]
    dated = []
    for path in paths:
        run_dir, job = RunDir(path), None
        try:
            job = record.load(run_dir)
        except (OSError, ValueError) as error:
            _say(f"{run_dir.job} cannot be read: {error}")
        if job is not None or run_dir.plan().exists() or any(path.glob("plan.attempt-*.json")):
            dated.append((_begun(run_dir, job), run_dir, job))
    dated.sort(key=lambda entry: (entry[0], entry[1].root), reverse=True)
    return [(run_dir, job) for _, run_dir, job in dated]


def _begun(run_dir: RunDir, job: JobRecord | None) -> float:
    """Return the time of submission, else that in the folder's name, else that of the plan."""
    if job is not None and job.submitted_ns:
        return job.submitted_ns / 1e9
    name_match = _RUN_NAME.match(run_dir.root.name)
    try:
        if name_match:
            return time.mktime(time.strptime(name_match[1], "%Y%m%d-%H%M%S"))
        return run_dir.plan().stat().st_mtime
    except (OSError, ValueError, OverflowError):
        return 0.0


def row(run_dir: RunDir, job: JobRecord | None, states: dict[tuple[str, str], JobState]) -> Row:
    """Return the row of a run."""
    slurm = states.get((job.cluster, job.job_id)) if job is not None else None
    since_ns = lookup.last_start_ns(job, slurm) if job is not None else 0
    history = events.read_history(run_dir.root, since_ns=since_ns)
    submitted_s = job.submitted_ns / 1e9 if job else None
    state, since_s = judge(slurm, history, submitted_s=submitted_s, alive=processes.is_alive)
    logged_step, loss = _figures(run_dir)
    last = evidence.last_checkpoint(run_dir.checkpoints)
    # any of these may lag behind: metrics are logged rarely, events cover the last start only
    steps = (logged_step, last.step if last else None, history.steps)
    step = max((count for count in steps if count is not None), default=None)
    return Row(
        run=run_dir.root.name,
        folder=str(run_dir.root),
        job=job.job_id if job else "",
        state=state,
        nodes=_nodes(slurm, job, history),
        step=step,
        loss=loss,
        since_s=since_s,
        reason=slurm.reason if slurm and slurm.waits else "",
    )


def _nodes(slurm: JobState | None, job: JobRecord | None, history: History) -> str:
    """Return the names of a run's nodes, else the requested or the recorded number."""
    if slurm is not None and slurm.nodes:
        return slurm.nodes
    if job is not None and job.nodes:
        return job.nodes
    return str(history.nodes) if history.nodes else ""


def judge(
    slurm: JobState | None,
    history: History,
    *,
    submitted_s: float | None,
    alive: Callable[[str, int, float], bool | None] = lambda *_: None,
) -> tuple[str, float | None]:
    """Return a run's state in one word, and since when. Pure.

    Args:
        slurm: State of the job in Slurm, None if Slurm does not know it.
        history: The events in the run folder.
        submitted_s: When the job was submitted, None if there is no job.
        alive: Returns whether a process of a host that started before a time is alive, None if that
            is unknown.
    """
    if slurm is not None and not slurm.ended:
        # a pending job's start is the expected one
        return slurm.state.lower(), submitted_s if slurm.waits else slurm.start_s
    outcome = history.outcome
    has_cause_in_slurm = slurm is not None and slurm.broke
    if outcome is not None and not (has_cause_in_slurm and outcome.stopped):
        return outcome.word, outcome.time_ns / 1e9
    if slurm is not None:
        return "succeeded" if slurm.succeeded else slurm.state.lower(), slurm.start_s
    started_s = history.started_ns / 1e9 if history.started_ns else submitted_s
    return events.state_by_processes(history, alive), started_s


def _figures(run_dir: RunDir) -> tuple[int | None, float | None]:
    """Return the last step and the last loss in the metrics of a run."""
    try:
        with open_file(run_dir.metrics) as file:
            head = file.readline(_TAIL_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(len(head), size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return None, None
    whole = tail[: tail.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()
    cut = size - len(head) > _TAIL_BYTES  # the first line of what was read has lost its beginning
    return last_figures(head.decode("utf-8", "replace"), whole[1 if cut else 0 :])


def last_figures(head: str, lines: Sequence[str]) -> tuple[int | None, float | None]:
    """Return the last step and the last loss of a table. Pure.

    Args:
        head: Its header line.
        lines: Its last lines.
    """
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


def render(rows: Sequence[Row]) -> str:
    """Return the table."""
    lines = [_COLUMNS, *(tuple(map(printable, _cells(row))) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(_COLUMNS))]
    aligned = (
        "  ".join(
            cell.rjust(width) if name in _RIGHT else cell.ljust(width)
            for name, cell, width in zip(_COLUMNS, line, widths, strict=True)
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in aligned)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.run,
        row.job or "-",
        row.state + (f" ({row.reason})" if row.reason else ""),
        row.nodes or "-",
        "-" if row.step is None else str(row.step),
        "-" if row.loss is None else f"{row.loss:.4g}",
        _when(row.since_s),
    )


def _when(at_s: float | None) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s)) if at_s else "-"
    except (ValueError, OverflowError, OSError):  # outside of the range of dates
        return "-"


def _no_folder(folder: Path) -> Finding:
    return Finding(
        "slurm-job-unknown",
        f"there is no folder {folder}",
        where=str(folder),
        fix=f"paceline jobs, in the folder that {RUNS}/ is in",
    )
