"""The folder of a sweep: find it, create it with the run folders of its elements, and record jobs.

The elements are ordinary runs, each in its run folder; what is said of a sweep is read from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import UsageError
from paceline.rundir import sweeps
from paceline.rundir.files import EARLIER_RUNS, RUNS, RunDir, require_space
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import record
from paceline.slurm.record import JobRecord
from paceline.text.quoting import printable


@dataclass(frozen=True)
class Member:
    """An element of a sweep."""

    index: int  # its index in the array
    run_dir: RunDir  # its run folder
    job: JobRecord  # record of its job


def find(
    subject: str,  # the folder of a sweep, its name, or the id of one of its arrays
    *,
    places: Sequence[Path] = (RUNS, EARLIER_RUNS),  # parents of run folders
) -> tuple[Path, SweepRecord] | None:
    """Return a sweep and its record, None if the subject is not a sweep."""
    if not subject:
        return None
    for folder in (Path(subject), *(runs / subject for runs in places)):
        if (sweep_record := sweeps.read(folder)) is not None:
            return folder, sweep_record
    candidates = ((path.parent, sweeps.read(path.parent)) for path in all_of(places))
    return next((pair for pair in _readable(candidates) if subject in pair[1].jobs), None)


def _readable(
    pairs: Iterator[tuple[Path, SweepRecord | None]],
) -> Iterator[tuple[Path, SweepRecord]]:
    for folder, sweep_record in pairs:
        if sweep_record is not None:
            yield folder, sweep_record


def all_of(places: Sequence[Path]) -> Iterator[Path]:
    """Return the ``sweep.json`` of all sweeps in folders of runs."""
    for runs in places:
        yield from sorted(runs.glob("*/sweep.json"))


def require(
    subject: str, *, places: Sequence[Path] = (RUNS, EARLIER_RUNS)
) -> tuple[Path, SweepRecord]:
    """Return a sweep and its record.

    Raises UsageError if the sweep does not exist.
    """
    sweep_record = find(subject, places=places)
    if sweep_record is not None:
        return sweep_record
    names = [path.parent.name for path in all_of(places)]
    raise UsageError.of(
        "slurm-job-unknown",
        printable(f"{subject!r} is not the folder, the name or the array of a sweep"),
        where=str(places[0].absolute()) if places else "",
        evidence=(f"sweeps there: {', '.join(map(printable, names[-5:]))}",) if names else (),
        fix="paceline jobs, in the folder that it was submitted from",
    )


def create(folder: Path, elements: Sequence[int]) -> None:
    """Create the run folders of elements; Slurm writes the output of each into its own.

    Raises OSError if a folder cannot be created or written.
    """
    for index in elements:
        sweeps.folder_of(folder, index).mkdir(parents=True, exist_ok=True)
    require_space(folder)


def record_array(
    folder: Path,
    sweep_record: SweepRecord,  # the record of the sweep, which already names the array
    indices: Sequence[int],
    *,
    job: JobRecord,  # what the records of the elements have in common; its id is that of the array
) -> None:
    """Record that elements were submitted as a new array.

    Raises SetupError if a file cannot be written.
    """
    with record.recording(folder, job.job_id):
        sweeps.write(folder, sweep_record)
        for index in indices:
            _record_element(folder, sweep_record, index, job)


def _record_element(folder: Path, sweep_record: SweepRecord, index: int, job: JobRecord) -> None:
    run_dir = RunDir(sweeps.folder_of(folder, index))
    job_id = f"{job.job_id}_{index}"
    previous = record.read(run_dir)
    if previous is not None and previous.job_id == job_id:
        return  # the element has started, and its script has recorded that
    new = replace(job, job_id=job_id, values=sweep_record.elements.get(index, {}))
    if previous is not None:
        new = previous.resubmitted(job_id, job.cluster)
    record.write(run_dir, new)


def members(folder: Path, sweep_record: SweepRecord) -> list[Member]:
    """Return the elements of a sweep; one without a record has that of its first array."""
    rows = []
    for index in sorted(sweep_record.elements):
        run_dir = RunDir(sweeps.folder_of(folder, index))
        job = record.read(run_dir) or JobRecord(
            f"{sweep_record.jobs[0]}_{index}",
            cluster=sweep_record.cluster,
            name=sweep_record.name,
            script=sweep_record.script,
            submitted_ns=sweep_record.submitted_ns,
            values=sweep_record.elements[index],
        )
        rows.append(Member(index, run_dir, job))
    return rows
