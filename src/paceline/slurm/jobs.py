"""``paceline jobs``: the runs of a folder, how each does, how far it has come.

Slurm is asked once for all of them; a run that it has forgotten, or never knew, is told by its folder. Of every file
only the end is read, so that hundreds of runs are listed at once.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_OK, Finding, UsageError
from paceline.launch.outcome import evidence
from paceline.rundir.files import RUNS, RunDir, open_file
from paceline.slurm import lookup, profile_files, record, told
from paceline.slurm.jobstate import JobState
from paceline.slurm.record import JobRecord
from paceline.slurm.told import History
from paceline.text import terminal
from paceline.text.quoting import printable

_COLUMNS = ("run", "job", "state", "nodes", "step", "loss", "since")
_RIGHT = frozenset({"job", "step", "loss"})
_TAIL_BYTES = 1 << 14
_STEP = "step"
# The first of these that a table has is the loss; after them any other name that ends so.
_LOSSES = ("loss", "train/loss", "train_loss", "loss/train", "train/loss_step", "train_loss_step")
_RUN_NAME = re.compile(r"^(\d{8}-\d{6})-")


@dataclass(frozen=True)
class Row:
    """A run as the table shows it.

    Attributes:
        run: Name of its folder.
        folder: Its folder.
        job: Number of its Slurm job, empty if it has none.
        state: What it does, or how it ended, in one word.
        nodes: Its nodes by name, or how many.
        step: Steps so far, None if none were told.
        loss: The last loss that it logged, None if it logged none.
        since_s: Since when it is in this state, None if that is not known.
        reason: Why it waits, in Slurm's word.
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
        """Return the row as plain data; a loss that is no number any more is none in JSON."""
        loss = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        return {**asdict(self), "loss": loss}


def jobs(folder: Path | None, *, as_json: bool) -> int:
    """Print the runs of a folder, the newest first; returns the exit status.

    Raises:
        UsageError: There is no such folder.
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


def _row(run_dir: RunDir, job: JobRecord | None, states: dict[tuple[str, str], JobState]) -> Row | None:
    """Return what is told of one run; None, with a line on stderr, if its folder cannot be read."""
    try:
        return row(run_dir, job, states)
    except Exception as error:  # the files may be anybody's; the other runs are listed all the same
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
    return [
        (run_dir, job) for _, run_dir, job in sorted(dated, key=lambda entry: (entry[0], entry[1].root), reverse=True)
    ]


def _begun(run_dir: RunDir, job: JobRecord | None) -> float:
    """Return when a run began: submitted, or as its name says, or when it was planned."""
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
    """Return what is told of one run."""
    slurm = states.get((job.cluster, job.job_id)) if job is not None else None
    history = told.read(run_dir, since_ns=lookup.last_start_ns(job, slurm) if job is not None else 0)
    state, since_s = judge(slurm, history, submitted_s=job.submitted_ns / 1e9 if job else None, alive=_is_alive)
    step, loss = _figures(run_dir)
    last = evidence.last_checkpoint(run_dir.checkpoints)
    # each may be behind the others: rows are logged now and then, events count the last start alone
    step = max(
        (count for count in (step, last.step if last else None, history.steps) if count is not None), default=None
    )
    nodes = (
        (slurm.nodes if slurm else "") or (job.nodes if job else "") or (str(history.nodes) if history.nodes else "")
    )
    return Row(
        run=run_dir.root.name,
        folder=str(run_dir.root),
        job=job.job_id if job else "",
        state=state,
        nodes=nodes,
        step=step,
        loss=loss,
        since_s=since_s,
        reason=slurm.reason if slurm and slurm.waits else "",
    )


def judge(
    slurm: JobState | None,
    history: History,
    *,
    submitted_s: float | None,
    alive: Callable[[str, int, float], bool | None] = lambda *_: None,
) -> tuple[str, float | None]:
    """Return a run's state in one word, and since when. Pure.

    Args:
        slurm: What Slurm says, None if it says nothing.
        history: The events in the run folder.
        submitted_s: When the job was submitted, None if there is none.
        alive: Returns whether a process of a host, started before a time, is still there; None if nobody knows.
    """
    if slurm is not None and not slurm.ended:
        # a pending job's start is the expected one
        return slurm.state.lower(), submitted_s if slurm.waits else slurm.start_s
    if history.outcome is not None and not (slurm is not None and slurm.broke and history.outcome.stopped):
        return history.outcome.word, history.outcome.time_ns / 1e9
    if slurm is not None:
        return "succeeded" if slurm.succeeded else slurm.state.lower(), slurm.start_s
    started_s = history.started_ns / 1e9 if history.started_ns else submitted_s
    living = [alive(host, pid, history.started_ns / 1e9) for host, pid in history.launchers]
    if any(living):
        return "running", started_s
    # A launcher that ends by itself says so in the run folder.
    return "killed" if living and None not in living else "unknown", started_s


def _is_alive(host: str, pid: int, before_s: float) -> bool | None:
    import psutil

    if host != socket.gethostname():
        return None
    try:
        return psutil.Process(pid).create_time() <= before_s + 1  # another one has the number by now
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False


def _figures(run_dir: RunDir) -> tuple[int | None, float | None]:
    """Return the last step and the last loss of what a run logged."""
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
        head: Its first line.
        lines: Its last ones.
    """
    columns = _split(head)
    name = next((name for name in _LOSSES if name in columns), None) or next(
        (name for name in columns if name.endswith("loss") and not name.startswith(("val", "test"))), None
    )
    step = _last(columns, lines, _STEP)
    return int(step) if step is not None and math.isfinite(step) else None, None if name is None else _last(
        columns, lines, name
    )


def _last(columns: Sequence[str], lines: Sequence[str], name: str) -> float | None:
    """Return the last figure of a column; not every row has every figure."""
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
    except (ValueError, OverflowError, OSError):  # no time of this world
        return "-"


def _no_folder(folder: Path) -> Finding:
    return Finding(
        "slurm-job-unknown",
        f"there is no folder {folder}",
        where=str(folder),
        fix=f"paceline jobs, in the folder that {RUNS}/ is in",
    )
