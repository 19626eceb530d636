"""``paceline jobs``: list the runs of a folder, a sweep as one row, or the elements of one sweep.

Slurm is queried once for all jobs; the run folder decides about runs that Slurm has forgotten or
never knew.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from paceline.errors import EXIT_OK, Finding, UsageError, option_contradicted
from paceline.rundir import sweeps
from paceline.rundir.files import RUNS, RunDir
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import job_states, profile_files, record
from paceline.slurm.job_states import States
from paceline.slurm.jobs import run_rows
from paceline.slurm.jobs.run_rows import RunRow
from paceline.slurm.record import JobRecord
from paceline.slurm.sweep import sweep_folder, sweep_rows
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.text.quoting import printable
from paceline.text.wording import aligned

_COLUMNS = ("run", "job", "state", "nodes", "step", "loss", "since")
_RIGHT = frozenset({"job", "step", "loss"})
_Place = TypeVar("_Place")
_Record = TypeVar("_Record")
_RUN_NAME = re.compile(r"^(\d{8}-\d{6})-")


@dataclass(frozen=True)
class JobEntry:
    """What is known of one row before Slurm is asked: a run, or a sweep with its elements."""

    run_dir: RunDir  # the run folder, or the folder of the sweep
    job: JobRecord | None = None  # record of the run's job, None if it has none
    sweep: SweepRecord | None = None  # record of the sweep, None for a run
    members: tuple[sweep_folder.Member, ...] = ()  # the elements of the sweep

    @property
    def jobs(self) -> list[JobRecord]:
        """The jobs to ask Slurm about."""
        own = [self.job] if self.job is not None else []
        return [*own, *(member.job for member in self.members)]


def jobs(
    # of runs, or of a sweep, which may be its name or array; None: the current one and of profiles
    folder: Path | None,
    *,
    as_json: bool,
    metric: str = "",  # by which the elements of a sweep are sorted
    descending: bool = False,
    limit: int | None = None,
) -> int:
    """Print the runs of a folder, the newest first, or the elements of a sweep."""
    if descending and not metric:
        what = "--descending has no effect without --sort"
        raise option_contradicted(what, fix="paceline jobs SWEEP --sort loss --descending")
    places = profile_files.run_folders()
    sweep_record = sweep_folder.find(str(folder), places=places) if folder is not None else None
    if sweep_record is not None and limit is not None:
        what = "--limit counts runs, and this lists the elements of a sweep"
        raise option_contradicted(what, fix=f"paceline jobs -n {limit}")
    if sweep_record is not None:
        return sweep_rows.show(*sweep_record, as_json=as_json, metric=metric, descending=descending)
    if metric:
        what = "--sort orders the elements of one sweep, and this lists runs"
        raise option_contradicted(what, fix="paceline jobs SWEEP --sort loss")
    if folder is not None and not folder.is_dir():
        raise UsageError(_no_folder(folder))
    return _list(places if folder is None else [folder], as_json=as_json, limit=limit)


def _list(places: Sequence[Path], *, as_json: bool, limit: int | None) -> int:
    every = gather(*places)
    entries = every[:limit]
    states, silent = job_states.states(job for entry in entries for job in entry.jobs)
    sweep_rows.say_silent(silent)
    table_rows = [values for entry in entries if (values := row_of(entry, states)) is not None]
    if as_json:
        print_json(table_rows)
    elif table_rows:
        print(render([values.row for values in table_rows]))
    else:
        _say(f"no runs in {places[0] if len(places) == 1 else RUNS}")
    if len(every) > len(entries):
        _say(f"older ones: {len(every) - len(entries)}")
    return EXIT_OK


def _say(text: str) -> None:
    terminal.say(printable(text))


@dataclass(frozen=True)
class _TableRow:
    """A row, and the elements of a sweep."""

    row: RunRow
    elements: tuple[sweep_rows.ElementRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        elements = {"elements": self.elements} if self.elements else {}
        return {**self.row.to_json(), **elements}


def row_of(entry: JobEntry, states: States) -> _TableRow | None:
    """Return the row of a run; None, after a line on stderr, if its folder cannot be read."""
    try:
        if entry.sweep is None:
            return _TableRow(run_rows.row(entry.run_dir, entry.job, states))
        elements = tuple(sweep_rows.element_row(member, states) for member in entry.members)
        return _TableRow(sweep_rows.total(entry.run_dir, entry.sweep, elements), elements)
    except Exception as error:  # the files may be damaged; the other runs are listed all the same
        _say(f"{entry.run_dir.root} cannot be read: {type(error).__name__}: {error}")
        return None


def gather(*places: Path) -> list[JobEntry]:
    """Return the runs of folders with the records of their jobs, the newest first."""
    paths: list[Path] = []
    for folder in places:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            paths += [Path(entry.path) for entry in entries if entry.is_dir()]
    dated = [dated for path in paths if (dated := _entry(path)) is not None]
    dated.sort(key=lambda pair: (pair[0], pair[1].run_dir.root), reverse=True)
    return [entry for _, entry in dated]


def _entry(path: Path) -> tuple[float, JobEntry] | None:
    """Return what a folder holds and when that began, None if it is not a run or a sweep."""
    run_dir = RunDir(path)
    sweep_record = _loaded(sweeps.load, path, file=run_dir.sweep)
    if sweep_record is not None:
        members = tuple(sweep_folder.members(path, sweep_record))
        return sweep_record.submitted_ns / 1e9, JobEntry(
            run_dir, sweep=sweep_record, members=members
        )
    job = _loaded(record.load, run_dir, file=run_dir.job)
    # os.path: a folder that this user may not read is not listed
    if (
        job is None
        and not os.path.exists(run_dir.plan())
        and not any(path.glob("plan.attempt-*.json"))
    ):
        return None
    return _begun(run_dir, job), JobEntry(run_dir, job)


def _loaded(
    load: Callable[[_Place], _Record | None], place: _Place, *, file: Path
) -> _Record | None:
    """Return a record; None, after a line on stderr, if its file cannot be read."""
    try:
        return load(place)
    except (OSError, ValueError) as error:
        _say(f"{file} cannot be read: {error}")
        return None


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


def render(rows: Sequence[RunRow]) -> str:
    """Return the table."""
    cells = [tuple(map(printable, _cells(row))) for row in rows]
    return "\n".join(aligned(_COLUMNS, cells, right=_RIGHT))


def _cells(row: RunRow) -> tuple[str, ...]:
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
