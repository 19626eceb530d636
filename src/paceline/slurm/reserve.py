"""A job script reserves its run folder before it starts the launchers on its nodes.

``job.sh`` can be submitted by plain ``sbatch`` too, twice or as an array. The folder then has one owner all the same:
the lease (``paceline.lease``), which the job's launcher takes over from this reservation.
"""

from __future__ import annotations

import sys
from pathlib import Path

from paceline import env, identity, lease
from paceline.errors import UsageError
from paceline.rundir import RunDir
from paceline.slurm import lookup, record
from paceline.slurm.record import JobRecord


def reserve(folder: Path, job_id: str) -> None:
    """Reserve a run folder for this job, and write the job's number into the record of the run.

    Args:
        folder: The run folder.
        job_id: The job that starts.

    Raises:
        UsageError: A living run has it, or it belongs to another array element.
        OSError: It cannot be written.
    """
    run_dir = RunDir(folder)
    mine = identity.of_command("", (), env.snapshot(), folder=identity.working_folder())
    conflict = identity.conflict(folder, identity.read(run_dir), mine)
    if conflict is not None:
        raise UsageError(conflict)
    folder.mkdir(parents=True, exist_ok=True)
    lease.acquire(folder, lease.this_job(element=mine.element), say=_say, ended=_has_ended)
    known = record.read(run_dir)
    if known is not None and known.job_id != job_id:
        record.write(run_dir, known.under(job_id))


def _has_ended(job_id: str) -> bool:
    """Return whether a job has ended as far as Slurm says: its run then gives no sign any more."""
    state = lookup.state(JobRecord(job_id)).state
    return state is not None and state.ended


def _say(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr, flush=True)
