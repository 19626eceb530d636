"""``paceline cancel``: end jobs for good, whole sweeps or single elements of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import EXIT_OK, Finding, SetupError
from paceline.machine import slurm_commands as commands
from paceline.rundir.files import RUNS, RunDir
from paceline.slurm import job_states, profile_files, record
from paceline.slurm.record import JobRecord
from paceline.slurm.sweep import sweep_folder
from paceline.text import terminal
from paceline.text.quoting import printable

Run = tuple[RunDir, JobRecord]


@dataclass(frozen=True)
class _Target:
    """What one word of the command line names."""

    name: str  # what it is, for messages
    jobs: tuple[Run, ...]  # its jobs: one, or the elements of a sweep


def cancel(
    # run folders, sweeps, their names, or ids of jobs. No job is ended before all of them are
    # known
    subjects: Sequence[str],
) -> int:
    """End the jobs of runs and sweeps, and return the exit status of the command.

    Raises UsageError if a run or sweep does not exist, or has no Slurm job. Raises SetupError if
    Slurm does not answer, or does not end a job.
    """
    places = profile_files.run_folders() or [RUNS]
    targets = [_find(subject, places) for subject in subjects]
    living = end_living([job for target in targets for job in target.jobs])
    for target in targets:
        num_living = sum(job in living for job in target.jobs)
        terminal.say(printable(_words(target, num_living)))
    return EXIT_OK


def end_living(runs: Sequence[Run]) -> list[Run]:
    """End the jobs of those of some runs that have not ended, record that, and return them.

    Raises SetupError if Slurm does not answer, or does not end a job.
    """
    states, silent = job_states.states(job for _, job in runs)
    if silent:
        raise SetupError(_no_answer())
    living = [run for run in runs if _lives(run[1], states)]
    if living:
        _end([job for _, job in living])
    for run_dir, job in living:
        # Slurm forgets the job within minutes; a folder of another user stays as it is
        with contextlib.suppress(OSError):
            record.write(run_dir, replace(job, cancelled=True))
    return living


def _find(subject: str, places: Sequence[Path]) -> _Target:
    sweep_record = sweep_folder.find(subject, places=places)
    if sweep_record is not None:
        folder, sweep = sweep_record
        members = sweep_folder.members(folder, sweep)
        jobs = tuple((member.run_dir, member.job) for member in members)
        return _Target(f"sweep {folder.name}", jobs)
    run_dir, job = record.find(subject, places=places)
    return _Target(f"job {job.job_id}", ((run_dir, job),))


def _lives(job: JobRecord, states: job_states.States) -> bool:
    state = states.get((job.cluster, job.job_id))
    return state is not None and not state.ended


def _end(jobs: Sequence[JobRecord]) -> None:
    """Call scancel once for each cluster; raise SetupError if it fails."""
    by_cluster: dict[str, list[str]] = {}
    for job in jobs:
        by_cluster.setdefault(job.cluster, []).append(job.job_id)
    for cluster, ids in by_cluster.items():
        where = ("-M", cluster) if cluster else ()
        reply = commands.run("scancel", *where, *ids)
        if reply.status:
            raise SetupError(_not_ended(reply, ids))


def _words(target: _Target, num_living: int) -> str:
    if not num_living:
        return f"{target.name} has already ended: nothing is cancelled"
    if len(target.jobs) == 1:
        return f"{target.name} is cancelled"
    return f"{target.name} is cancelled: {num_living} of {len(target.jobs)} elements had not ended"


def _no_answer() -> Finding:
    return Finding(
        "slurm-unavailable",
        "squeue does not answer: which jobs have not ended is not known",
        fix="scontrol ping",
    )


def _not_ended(reply: commands.Reply, ids: Sequence[str]) -> Finding:
    lines = tuple(line.strip() for line in reply.err.splitlines() if line.strip())[-3:]
    is_silent = reply.status in (commands.UNANSWERED, commands.MISSING)
    return Finding(
        "slurm-unavailable" if is_silent else "slurm-refused",
        f"scancel failed with status {reply.status}",
        where=f"job {ids[0]}",
        evidence=tuple(map(printable, lines)),
        fix=f"scancel {ids[0]}",
    )
