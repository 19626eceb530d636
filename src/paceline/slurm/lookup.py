"""Query Slurm for the state of jobs: squeue first, then scontrol and sacct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.machine import slurm_commands as commands
from paceline.slurm import jobstate
from paceline.slurm.jobstate import JobState
from paceline.slurm.record import JobRecord

States = Mapping[tuple[str, str], JobState]  # by cluster and job id

_UNKNOWN = "Invalid job id"
# -r: a line for each element of an array, also of those that wait
_SHAPE = ("-h", "-r", "-t", "all", "-o", jobstate.SQUEUE_FORMAT)
_CLOCKS_NS = 2_000_000_000  # the clocks of the nodes and the controller agree to within this


@dataclass(frozen=True)
class Answer:
    """Slurm's answer about a job."""

    has_answered: bool  # whether Slurm answered
    # state of the job, None if Slurm has forgotten it or did not answer
    state: JobState | None = None


def _cluster(name: str) -> tuple[str, ...]:
    return ("-M", name) if name else ()


def state(job: JobRecord) -> Answer:
    """Query the state of a job: with squeue while it lives, in full once it has ended."""
    result = commands.query("squeue", *_cluster(job.cluster), *_SHAPE, "-j", job.job_id)
    if result.status != 0 and _UNKNOWN not in result.err:
        return Answer(has_answered=False)
    current = jobstate.from_squeue(result.out).get(job.job_id)
    if current is not None and not current.ended:
        return Answer(has_answered=True, state=current)
    return Answer(has_answered=True, state=full(job) or current or forgotten(job))


def full(job: JobRecord) -> JobState | None:
    """Return the full state of a job, None if neither scontrol nor sacct knows the job."""
    where = _cluster(job.cluster)
    job_state = jobstate.from_scontrol(
        commands.ask("scontrol", *where, "show", "job", "-o", job.job_id) or ""
    )
    if job_state is None:
        shape = ("-X", "-n", "-P", "-o", jobstate.SACCT_FORMAT)
        answer = commands.ask("sacct", *where, *shape, "-j", job.job_id)
        job_state = jobstate.from_sacct(answer or "")
    # both give an element of an array the number that it has in the queue, 128 for 124_4
    return None if job_state is None else replace(job_state, job_id=job.job_id)


def states(jobs: Iterable[JobRecord]) -> tuple[dict[tuple[str, str], JobState], list[str]]:
    """Return the states of jobs by cluster and id, and the clusters that do not answer.

    Each cluster is queried once.
    """
    by_cluster: dict[str, list[JobRecord]] = {}
    for job in jobs:
        by_cluster.setdefault(job.cluster, []).append(job)
    by_job: dict[tuple[str, str], JobState] = {}
    silent = []
    for cluster, members in by_cluster.items():
        ids = [job.job_id for job in members]
        text = _table(cluster, ids)
        if text is None:
            silent.append(cluster)
        else:
            table = jobstate.from_squeue(text)
            table |= never_started(table, ids)
            for job in members:
                if job.job_id not in table and (last := forgotten(job)):
                    table[job.job_id] = last
            by_job |= {(cluster, number): job_state for number, job_state in table.items()}
    return by_job, silent


def never_started(table: Mapping[str, JobState], ids: Iterable[str]) -> dict[str, JobState]:
    """Return the elements that ended before their start. Pure.

    squeue lists those of a cancelled array in one line, with the array's own number.
    """
    rest = [number for number in ids if number not in table]
    arrays = {number: table.get(number.partition("_")[0]) for number in rest}
    return {
        number: replace(array, job_id=number)
        for number, array in arrays.items()
        if array is not None and array.ended and not array.succeeded
    }


def forgotten(job: JobRecord) -> JobState | None:
    """Return the state of a job that Slurm no longer knows, None if nothing shows it. Pure.

    A job that left the queue without having begun was cancelled: by a user, or with a job that it
    depends on.
    """
    if job.has_begun and not job.cancelled:
        return None
    why = "paceline cancel" if job.cancelled else "no longer in the queue, and never begun"
    return JobState(job.job_id, jobstate.CANCELLED, why)


def _table(cluster: str, ids: Sequence[str]) -> str | None:
    arrays = dict.fromkeys(number.partition("_")[0] for number in ids)
    result = commands.query("squeue", *_cluster(cluster), *_SHAPE, "-j", ",".join(arrays))
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
