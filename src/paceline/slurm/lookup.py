"""A hand: Slurm is asked about jobs, by whichever of its commands answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.machine import slurm_commands as commands
from paceline.slurm import jobstate
from paceline.slurm.jobstate import JobState
from paceline.slurm.record import JobRecord

_UNKNOWN = "Invalid job id"
_CLOCKS_NS = 2_000_000_000  # nodes' clocks and the controller's agree within this


@dataclass(frozen=True)
class Answer:
    """What Slurm answered about a job.

    Attributes:
        heard: There was an answer.
        state: The job's state; None where Slurm has forgotten the job, or did not answer.
    """

    heard: bool
    state: JobState | None = None


def _cluster(name: str) -> tuple[str, ...]:
    return ("-M", name) if name else ()


def state(job: JobRecord) -> Answer:
    """Ask about one job: a short question while it lives, and all that Slurm knows at its end."""
    shape = ("-h", "-t", "all", "-o", jobstate.SQUEUE_FORMAT)
    result = commands.query("squeue", *_cluster(job.cluster), *shape, "-j", job.job_id)
    if result.status != 0 and _UNKNOWN not in result.err:
        return Answer(heard=False)
    current = jobstate.from_squeue(result.out).get(job.job_id)
    if current is not None and not current.ended:
        return Answer(True, current)
    return Answer(True, full(job) or current)


def full(job: JobRecord) -> JobState | None:
    """Return all that Slurm knows of a job, None if no command of it knows the job."""
    where = _cluster(job.cluster)
    job_state = jobstate.from_scontrol(commands.ask("scontrol", *where, "show", "job", "-o", job.job_id) or "")
    if job_state is not None:
        return job_state
    shape = ("-X", "-n", "-P", "-o", jobstate.SACCT_FORMAT)
    return jobstate.from_sacct(commands.ask("sacct", *where, *shape, "-j", job.job_id) or "")


def states(jobs: Iterable[JobRecord]) -> tuple[dict[tuple[str, str], JobState], list[str]]:
    """Return the states of many jobs by cluster and number, and the clusters that do not answer; asks each once."""
    ids_by_cluster: dict[str, list[str]] = {}
    for job in jobs:
        ids_by_cluster.setdefault(job.cluster, []).append(job.job_id)
    by_job: dict[tuple[str, str], JobState] = {}
    silent = []
    for cluster, ids in ids_by_cluster.items():
        text = _table(cluster, ids)
        if text is None:
            silent.append(cluster)
        else:
            by_job |= {(cluster, number): job_state for number, job_state in jobstate.from_squeue(text).items()}
    return by_job, silent


def _table(cluster: str, ids: Sequence[str]) -> str | None:
    shape = ("-h", "-t", "all", "-o", jobstate.SQUEUE_FORMAT)
    result = commands.query("squeue", *_cluster(cluster), *shape, "-j", ",".join(ids))
    if result.status == 0 or _UNKNOWN in result.err:  # of a single job that was forgotten
        return result.out
    return None


def last_start_ns(job: JobRecord, state: JobState | None) -> int:
    """Return when the last start of a job began, at the earliest: what its run told before is of another start. Pure.

    Args:
        job: The record of the job.
        state: What Slurm says; None if it says nothing.
    """
    since_ns = max([job.submitted_ns - _CLOCKS_NS, *(requeue.time_ns for requeue in job.requeues[-1:])])
    # Slurm queues a job again by itself too, after a node failed: that is in no record
    if state is not None and state.start_s is not None and (state.restarts or job.earlier_ids):
        since_ns = max(since_ns, int(state.start_s * 1e9) - _CLOCKS_NS)
    return since_ns
