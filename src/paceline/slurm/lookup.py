"""Query Slurm for the state of jobs: squeue first, then scontrol and sacct."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paceline.machine import slurm_commands as commands
from paceline.slurm import jobstate
from paceline.slurm.jobstate import JobState
from paceline.slurm.record import JobRecord

_UNKNOWN = "Invalid job id"
_CLOCKS_NS = 2_000_000_000  # the clocks of the nodes and the controller agree to within this


@dataclass(frozen=True)
class Answer:
    """Slurm's answer about a job.

    Attributes:
        has_answered: Whether Slurm answered.
        state: State of the job, None if Slurm has forgotten it or did not answer.
    """

    has_answered: bool
    state: JobState | None = None


def _cluster(name: str) -> tuple[str, ...]:
    return ("-M", name) if name else ()


def state(job: JobRecord) -> Answer:
    """Query the state of a job: with squeue while it lives, in full once it has ended."""
    shape = ("-h", "-t", "all", "-o", jobstate.SQUEUE_FORMAT)
    result = commands.query("squeue", *_cluster(job.cluster), *shape, "-j", job.job_id)
    if result.status != 0 and _UNKNOWN not in result.err:
        return Answer(has_answered=False)
    current = jobstate.from_squeue(result.out).get(job.job_id)
    if current is not None and not current.ended:
        return Answer(has_answered=True, state=current)
    return Answer(has_answered=True, state=full(job) or current)


def full(job: JobRecord) -> JobState | None:
    """Return the full state of a job, None if neither scontrol nor sacct knows the job."""
    where = _cluster(job.cluster)
    job_state = jobstate.from_scontrol(
        commands.ask("scontrol", *where, "show", "job", "-o", job.job_id) or ""
    )
    if job_state is not None:
        return job_state
    shape = ("-X", "-n", "-P", "-o", jobstate.SACCT_FORMAT)
    return jobstate.from_sacct(commands.ask("sacct", *where, *shape, "-j", job.job_id) or "")


def states(jobs: Iterable[JobRecord]) -> tuple[dict[tuple[str, str], JobState], list[str]]:
    """Return the states of jobs by cluster and id, and the clusters that do not answer.

    Each cluster is queried once.
    """
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
            by_job |= {
                (cluster, number): job_state
                for number, job_state in jobstate.from_squeue(text).items()
            }
    return by_job, silent


def _table(cluster: str, ids: Sequence[str]) -> str | None:
    shape = ("-h", "-t", "all", "-o", jobstate.SQUEUE_FORMAT)
    result = commands.query("squeue", *_cluster(cluster), *shape, "-j", ",".join(ids))
    is_forgotten = _UNKNOWN in result.err  # the only job in the list
    return result.out if result.status == 0 or is_forgotten else None


def last_start_ns(job: JobRecord, state: JobState | None) -> int:
    """Return a lower bound of the time of the job's last start. Pure.

    Earlier events belong to an earlier start.

    Args:
        job: Record of the job.
        state: State of the job in Slurm, None if unknown.
    """
    since_ns = job.submitted_ns - _CLOCKS_NS
    if job.requeues:
        since_ns = max(since_ns, job.requeues[-1].time_ns)
    if state is None or state.start_s is None:
        return since_ns
    # after a node failure Slurm requeues a job automatically, which the record does not show
    if state.restarts or job.earlier_ids:
        since_ns = max(since_ns, int(state.start_s * 1e9) - _CLOCKS_NS)
    return since_ns
