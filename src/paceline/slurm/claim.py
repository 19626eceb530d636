"""A hand: a job that starts makes sure that its run folder is its own, before anything is written there.

``job.sh`` can be submitted by plain ``sbatch`` too, and then nobody has looked whether its run still goes on elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from paceline.errors import Finding, UsageError
from paceline.rundir import RunDir
from paceline.slurm import lookup, record
from paceline.slurm.jobstate import JobState
from paceline.slurm.quoting import word

# So long the last lines of a job may take that was submitted again under another number and ends now.
_PATIENCE_S = 30.0


def claim(
    folder: Path,
    job_id: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take over the record of a run folder for the job of this number.

    Args:
        folder: The run folder.
        job_id: The job that starts.
        clock: Tells the time in seconds; for tests.
        sleep: Waits; for tests.

    Raises:
        UsageError: Another job is at work in the folder.
    """
    run_dir, until = RunDir(folder), clock() + _PATIENCE_S
    while True:
        known = record.read(run_dir)
        if known is None or known.job_id == job_id:
            return
        state = lookup.state(known).state
        if state is None or state.ended:
            record.write(run_dir, known.under(job_id))
            return
        if clock() > until:
            raise UsageError(_occupied(folder, state))
        sleep(1.0)


def _occupied(folder: Path, state: JobState) -> Finding:
    return Finding(
        "option-contradicted",
        f"the run folder {folder} is that of job {state.job_id}, which is {state.state.lower()}",
        where="paceline endpoint --run-dir",
        why="two jobs would write the same checkpoints",
        fix=f"paceline follow {word(str(folder))}, or: scancel {state.job_id}",
    )
