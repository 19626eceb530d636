"""``paceline cancel``: end jobs for good, whole sweeps or single elements of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import EXIT_OK, Finding, SetupError
from paceline.machine import slurm_commands as commands
from paceline.rundir.files import RUNS
from paceline.slurm import lookup, profile_files, record, sweep_folder
from paceline.slurm.record import JobRecord
from paceline.text import terminal
from paceline.text.quoting import printable


@dataclass(frozen=True)
class _Target:
    """What one word of the command line names."""

    name: str  # what it is, for messages
    jobs: tuple[JobRecord, ...]  # its jobs: one, or the elements of a sweep


def cancel(subjects: Sequence[str]) -> int:
    """End the jobs of runs and sweeps, and return the exit status of the command.

    Args:
        subjects: Run folders, sweeps, their names, or ids of jobs. No job is ended before all of
            them are known.

    Raises:
        UsageError: A run or sweep does not exist, or has no Slurm job.
        SetupError: Slurm does not answer, or does not end a job.
    """
    places = profile_files.run_folders() or [RUNS]
    targets = [_find(subject, places) for subject in subjects]
    living = end_living([job for target in targets for job in target.jobs])
    for target in targets:
        num_living = sum(job in living for job in target.jobs)
        terminal.say(printable(_words(target, num_living)))
    return EXIT_OK


def end_living(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """End those of some jobs that have not ended, and return them.

    Raises:
        SetupError: Slurm does not answer, or does not end a job.
    """
    states, silent = lookup.states(jobs)
    if silent:
        raise SetupError(_no_answer())
    living = [job for job in jobs if _lives(job, states)]
    if living:
        _end(living)
    return living


def _find(subject: str, places: Sequence[Path]) -> _Target:
    sweep_record = sweep_folder.find(subject, places=places)
    if sweep_record is not None:
        folder, sweep = sweep_record
        jobs = tuple(member.job for member in sweep_folder.members(folder, sweep))
        return _Target(f"sweep {folder.name}", jobs)
    _, job = record.find(subject, places=places)
    return _Target(f"job {job.job_id}", (job,))


def _lives(job: JobRecord, states: lookup.States) -> bool:
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
