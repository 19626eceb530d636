"""Reserve the run folder for a job, before its script starts the launchers.

``job.sh`` can be submitted with plain ``sbatch`` too, twice or as an array. The lease
(``paceline.rundir.lease``) ensures that the folder still has one owner; the job's launcher takes it
over from this reservation.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

from paceline import env
from paceline.errors import UsageError
from paceline.rundir import identity, lease, lease_file, sweeps
from paceline.rundir.files import SECRET_MODE, RunDir
from paceline.rundir.owned import delete, whole
from paceline.rundir.sweeps import SweepRecord
from paceline.slurm import job_states, record
from paceline.slurm.record import JobRecord
from paceline.slurm.sweep import definition
from paceline.text import terminal


def reserve(
    folder: Path,
    job_id: str,  # id of the job that starts
    *,
    # the job script, if ``paceline submit --dry-run`` printed it: the job then creates the record
    script: Path | None = None,
    on_node_loss: str = "requeue",  # ``"requeue"`` or ``"fail"``, for that record
) -> None:
    """Reserve a run folder for this job, and write the job id into the record of the run.

    Raises UsageError if the folder belongs to a living run, or to another array element. Raises
    OSError if the folder cannot be written.
    """
    run_dir = RunDir(folder)
    own_identity = identity.of_command("", (), env.snapshot(), folder=identity.working_folder())
    conflict = identity.conflict(folder, identity.read(run_dir), own_identity)
    if conflict is not None:
        raise UsageError(conflict)
    folder.mkdir(parents=True, exist_ok=True)
    mine = lease_file.this_job(element=own_identity.element)
    lease.acquire(folder, mine, say=terminal.say, ended=_has_ended)
    job = record.read(run_dir)
    if job is None and script is not None:
        job = JobRecord(job_id, submitted_ns=time.time_ns(), on_node_loss=on_node_loss)
        job = _in_sweep(run_dir, job, script)
        record.write(run_dir, job)
    elif job is not None and job.job_id != job_id:
        record.write(run_dir, job.under(job_id))
    if script is not None:
        with contextlib.suppress(OSError):  # the run works without these files
            _store_script(run_dir, script)


def _in_sweep(run_dir: RunDir, job: JobRecord, script: Path) -> JobRecord:
    """Return the record of a job with its values, and record the sweep, if it is an element of one.

    All elements that start at the same time write the same.
    """
    array, _, element = job.job_id.partition("_")
    elements = None
    with contextlib.suppress(OSError, ValueError):  # the run works without the record of a sweep
        elements = definition.from_comment(script.read_text(encoding="utf-8"))
    if not element or elements is None:
        return job
    folder = run_dir.root.parent
    if sweeps.read(folder) is None:
        sweep_record = SweepRecord(
            jobs=(array,), submitted_ns=job.submitted_ns, elements=elements, name=script.name
        )
        with contextlib.suppress(OSError):
            _copy(script, RunDir(folder).job_script)
            sweeps.write(folder, sweep_record)
    return replace(job, values=elements.get(int(element), {}))


def _store_script(run_dir: RunDir, script: Path) -> None:
    """Store the script, to submit it again, and a link to the output, as ``submit`` does."""
    _copy(script, run_dir.job_script)
    output = Path(os.readlink("/proc/self/fd/2"))  # the script's, which this command inherits
    is_taken = run_dir.job_output.exists() and not run_dir.job_output.is_symlink()
    if is_taken or not output.is_file():
        return
    delete(run_dir.job_output)
    run_dir.job_output.symlink_to(output)


def _copy(script: Path, path: Path) -> None:
    with whole(path, mode=SECRET_MODE) as file:
        file.write(script.read_bytes())


def _has_ended(job_id: str) -> bool:
    """Return whether a job has ended according to Slurm."""
    state = job_states.state(JobRecord(job_id)).state
    return state is not None and state.ended
