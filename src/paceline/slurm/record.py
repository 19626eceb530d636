"""Read and write ``job.json``, the record of a run's Slurm job, and find runs by name or job id.

``paceline submit`` writes the record, and the job script adds an entry each time the job is queued
again.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import Finding, SetupError, UsageError, closest
from paceline.rundir import sweeps
from paceline.rundir.files import EARLIER_RUNS, RUNS, RunDir, read_json, write_whole
from paceline.text.plain_data import read_as
from paceline.text.quoting import printable, word
from paceline.text.secret_texts import hidden_values

VERSION = 1

UNFINISHED, NODE_LOST = "unfinished", "node-lost"
# These are passed to Slurm's commands, so their syntax is checked.
_JOB_ID = re.compile(r"[0-9]{1,20}(_[0-9]{1,20})?")
_CLUSTER = re.compile(r"[A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Requeue:
    """One requeue of the job."""

    # optimizer steps of the checkpoint from which the next start resumes, 0 without a checkpoint
    step: int
    time_ns: int  # time of the requeue
    why: str  # ``"unfinished"`` or ``"node-lost"``
    # whether the previous start trained, and its script keeps checkpoints outside of the run folder
    elsewhere: bool = False


@dataclass(frozen=True)
class JobRecord:
    """A run's Slurm job."""

    job_id: str  # job id that sbatch printed
    # ids before the job was submitted again, in the order of submission
    earlier_ids: tuple[str, ...] = ()
    cluster: str = ""  # the cluster that sbatch printed; empty if it printed none
    name: str = ""  # name of the job
    script: str = ""  # the training script
    nodes: str = ""  # requested number of nodes, ``"2"`` or ``"1-2"``
    submitted_ns: int = 0  # time of the first submission
    on_node_loss: str = "requeue"  # ``"requeue"`` or ``"fail"``
    requeues: tuple[Requeue, ...] = ()  # requeues by the job script, in order
    # values of the parameters, if the run is an element of a sweep
    values: Mapping[str, str] = field(default_factory=dict)
    cancelled: bool = False  # whether paceline has cancelled the job
    # whether the job has begun as far as its run folder shows; not a part of the file
    has_begun: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        values = {"version": VERSION, **asdict(self), "values": hidden_values(self.values)}
        del values["has_begun"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobRecord:
        """Return the record from the output of ``to_json``.

        Raises ValueError if the values are not a record of this version.
        """
        if not isinstance(values, Mapping) or values.get("version") != VERSION:
            raise ValueError(f"not the record of a job in version {VERSION}")
        record = read_as(cls, values)
        record._check()
        return record

    def _check(self) -> None:
        if not all(_JOB_ID.fullmatch(number) for number in self.ids):
            raise ValueError("not the record of a job: its id is not a job id")
        if not _CLUSTER.fullmatch(self.cluster) or self.cluster.startswith("-"):
            raise ValueError("not the record of a job: its cluster has no valid name")

    def resubmitted(self, job_id: str, cluster: str = "") -> JobRecord:
        """Return the record of the job under a new id."""
        earlier = (*self.earlier_ids, self.job_id)
        return replace(self, job_id=job_id, cluster=cluster, earlier_ids=earlier, cancelled=False)

    def under(self, job_id: str) -> JobRecord:
        """Return the record with this job id: its script may have been submitted again."""
        return self if job_id == self.job_id else self.resubmitted(job_id)

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids that the job has had."""
        return (*self.earlier_ids, self.job_id)


def write(run_dir: RunDir, record: JobRecord) -> None:
    """Write the record of a run's job.

    Raises OSError if the folder cannot be written.
    """
    write_whole(run_dir.job, json.dumps(record.to_json(), indent=1) + "\n")


@contextlib.contextmanager
def recording(folder: Path, job_id: str) -> Iterator[None]:
    """Report an error of writing the records of a job that Slurm has already accepted.

    Raises SetupError if a record cannot be written; the message says that the job is queued.
    """
    try:
        yield
    except OSError as error:
        raise SetupError.of(
            "folder-not-writable",
            f"job {job_id} is queued, but its record cannot be written: {error.strerror or error}",
            where=str(folder),
            why="without it the job is not listed, and not queued again when it is stopped",
            fix=f"scancel {job_id}, free some space, and submit it again",
        ) from None


def load(run_dir: RunDir) -> JobRecord | None:
    """Return the record of a run's job, None if the run has none.

    Raises OSError if the file cannot be read. Raises ValueError if the file is not a record.
    """
    try:
        record = JobRecord.from_json(read_json(run_dir.job))
        # only of a job that paceline has submitted does the output lie in the run folder
        has_begun = not record.script or run_dir.job_output.exists() or run_dir.plan().exists()
        return replace(record, has_begun=has_begun)
    except FileNotFoundError:
        return None


def read(run_dir: RunDir) -> JobRecord | None:
    """Return the record of a run's job, None if there is no readable record."""
    try:
        return load(run_dir)
    except (OSError, ValueError):
        return None


def element_of(job_id: str) -> str:
    """Return the part of a job id that names the element of an array, ``_4``; else empty."""
    _, separator, element = job_id.partition("_")
    return separator + element


def sbatch_words(run_dir: RunDir, job_id: str) -> tuple[str, ...]:
    """Return the arguments with which sbatch submits a run again: its script, and of an array the
    element alone.
    """
    script = sweeps.job_script(RunDir(run_dir.root.absolute()), job_id)
    return (*sweeps.element_option(job_id), str(script))


def find(
    subject: str,  # a run folder, the name of one, or a job id
    *,
    places: Sequence[Path] = (RUNS, EARLIER_RUNS),  # parents of run folders
) -> tuple[RunDir, JobRecord]:
    """Find a run and the record of its job.

    Raises UsageError if the run does not exist, or has no Slurm job.
    """
    for folder in (Path(subject), *(runs / subject for runs in places)):
        run_dir = RunDir(folder)
        if not subject or not folder.is_dir():
            continue
        record = read(run_dir)
        if record is None:
            raise UsageError(_one_of_many(run_dir) or _no_job(run_dir))
        return run_dir, record
    matches = [
        (run_dir, record)
        for runs in places
        for run_dir, record in _all(runs, elements="_" in subject)
        if subject in record.ids
    ]
    if not matches:
        of_sweep = _sweep_of(subject, places)
        raise UsageError((of_sweep and _one_of_many(of_sweep)) or _unknown(subject, places))
    return max(matches, key=lambda match: match[1].submitted_ns)


def _sweep_of(array: str, places: Sequence[Path]) -> RunDir | None:
    """Return the folder of the sweep that was submitted as an array, None without one."""
    for runs in places:
        for path in runs.glob("*/sweep.json"):
            sweep_record = sweeps.read(path.parent)
            if sweep_record is not None and array in sweep_record.jobs:
                return RunDir(path.parent)
    return None


def _one_of_many(run_dir: RunDir) -> Finding | None:
    """Return why a sweep is not one run, None if the folder is not that of a sweep."""
    sweep_record = sweeps.read(run_dir.root)
    if sweep_record is None:
        return None
    first = sweeps.folder_of(run_dir.root, min(sweep_record.elements, default=0))
    return Finding(
        "slurm-job-unknown",
        printable(
            f"{run_dir.root} is a sweep of {len(sweep_record.elements)} runs, and one is needed"
        ),
        where=printable(str(run_dir.root)),
        evidence=(printable(f"paceline jobs {word(str(run_dir.root))}"),),
        fix=f"paceline follow {word(str(first))}",
    )


def _all(runs: Path, *, elements: bool) -> Iterator[tuple[RunDir, JobRecord]]:
    """Return the runs of a folder that have jobs, with the elements of sweeps if wanted."""
    patterns = ("*/job.json", "*/[0-9]*/job.json") if elements else ("*/job.json",)
    for path in sorted(path for pattern in patterns for path in runs.glob(pattern)):
        run_dir = RunDir(path.parent)
        record = read(run_dir)
        if record is not None:
            yield run_dir, record


def _no_job(run_dir: RunDir) -> Finding:
    exists = run_dir.job.exists()
    return Finding(
        "slurm-job-unknown",
        printable(
            f"{run_dir.job} cannot be read"
            if exists
            else f"the run of {run_dir.root} has no Slurm job"
        ),
        where=printable(str(run_dir.root)),
        evidence=(
            () if exists else (printable(f"there is no {run_dir.job}: paceline submit writes one"),)
        ),
        fix=f"paceline explain {word(str(run_dir.root))}",
    )


def _unknown(subject: str, places: Sequence[Path]) -> Finding:
    runs = places[0]
    names = [path.name for place in places for path in place.glob("*") if path.is_dir()]
    if subject.isdigit():
        what = f"no run in {runs} has had job {subject}"
    else:
        what = f"{subject!r} is not a run folder, a run in {runs}, or a job id"
    near = closest(subject, names)
    return Finding(
        "slurm-job-unknown",
        what,
        where=str(runs.absolute()),
        fix=(
            f"paceline follow {word(near)}"
            if near
            else "paceline jobs, in the folder that the job was submitted from"
        ),
    )
