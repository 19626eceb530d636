"""Ask squeue, scontrol and sacct for the state of Slurm jobs.

``state`` and ``states`` call the commands; the rest parses what they print.

The three commands know different things: squeue lists many jobs at once; scontrol shows one in
full, and forgets it minutes after its end (``MinJobAge``); sacct remembers old jobs, if the site
has accounting.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.launch.plan.option_values import seconds_of
from paceline.machine import slurm_commands as commands
from paceline.slurm.record import JobRecord

# Output formats of squeue and sacct; a reason may contain anything but the bar.
SQUEUE_FORMAT = "%i|%T|%N|%S|%r"
SACCT_FORMAT = "JobIDRaw,State,NodeList,Start,ExitCode,Reason"

PENDING, RUNNING, COMPLETING, COMPLETED = "PENDING", "RUNNING", "COMPLETING", "COMPLETED"
CANCELLED = "CANCELLED"
# Final states. STOPPED and SUSPENDED are not among them: such a job goes on.
_ENDED = frozenset(
    {
        COMPLETED,
        "FAILED",
        CANCELLED,
        "TIMEOUT",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "REVOKED",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
    }
)
# Final states whose cause the run cannot know, since all that it gets is a signal.
_BROKEN = frozenset(
    {"NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "LAUNCH_FAILED", "RECONFIG_FAIL"}
)
_WAITING = frozenset(
    {PENDING, "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
_NOTHING = frozenset({"", "(null)", "None", "N/A", "Unknown", "None assigned"})


@dataclass(frozen=True)
class JobState:
    """A job as Slurm sees it."""

    job_id: str  # id of the job
    state: str  # Slurm's name of the state: ``PENDING``, ``RUNNING``, ``COMPLETED``, ``TIMEOUT``
    reason: str = ""  # why the job waits or has ended; empty if Slurm gives no reason
    nodes: str = ""  # nodes of the job as Slurm writes them, ``node[1-2]``
    start_s: float | None = None  # time of the actual or expected start, None if unknown
    exit_code: int | None = None  # exit status of the job script, None if unknown
    signal: int = 0  # signal that ended the job script, 0 if none did
    restarts: int = 0  # how often the job was queued again under this id
    requeue: bool | None = None  # whether the job may be queued again, None if unknown
    excluded: str = ""  # nodes that the job must not use
    limit_s: float | None = None  # time limit, None if it is unknown or unlimited

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in _ENDED

    @property
    def waits(self) -> bool:
        """Whether the job is in the queue."""
        return self.state in _WAITING

    @property
    def broke(self) -> bool:
        """Whether the job ended for a reason that its run, which got a signal, cannot know."""
        return self.state in _BROKEN

    @property
    def succeeded(self) -> bool:
        """Whether Slurm calls the job completed."""
        return self.state == COMPLETED


def from_squeue(text: str) -> dict[str, JobState]:
    """Return the jobs in the output of ``squeue -h -o SQUEUE_FORMAT`` by their ids."""
    rows = (line.split("|", 4) for line in text.splitlines())  # with -M a line names the cluster
    jobs = (
        JobState(
            job_id=row[0].strip(),
            state=_word(row[1]),
            nodes=_value(row[2]),
            start_s=_seconds(row[3]),
            reason=_value(row[4]),
        )
        for row in rows
        if len(row) == 5
    )
    return {job.job_id: job for job in jobs}


def from_scontrol(text: str) -> JobState | None:
    """Return the job in the output of ``scontrol show job -o``, None if there is none."""
    values = _pairs(text)
    if "JobId" not in values or "JobState" not in values:
        return None
    code, signal = _exit(values.get("ExitCode", ""))
    return JobState(
        job_id=values["JobId"],
        state=_word(values["JobState"]),
        reason=_value(values.get("Reason", "")),
        nodes=_value(values.get("NodeList", "")),
        start_s=_seconds(values.get("StartTime", "")),
        exit_code=code,
        signal=signal,
        restarts=int(values.get("Restarts", "0") or 0),
        requeue=values["Requeue"] == "1" if "Requeue" in values else None,
        excluded=_value(values.get("ExcNodeList", "")),
        limit_s=seconds_of(values.get("TimeLimit", "").strip()) or None,
    )


def from_sacct(text: str) -> JobState | None:
    """Return the job in the output of ``sacct -X -n -P -o SACCT_FORMAT``, None if there is none."""
    rows = [row for row in (line.split("|", 5) for line in text.splitlines()) if len(row) == 6]
    if not rows:
        return None
    job_id, state, nodes, start, ended, reason = rows[-1]
    code, signal = _exit(ended)
    return JobState(
        job_id=job_id,
        state=_word(state),
        reason=_value(reason),
        nodes=_value(nodes),
        start_s=_seconds(start),
        exit_code=code,
        signal=signal,
    )


def _pairs(text: str) -> Mapping[str, str]:
    """Return the ``Key=value`` pairs of a line; the first wins, as a path may look like another."""
    values: dict[str, str] = {}
    # the job's name comes after its ids and may contain anything: parsing resumes after it
    name = r"^(JobId=\S+ (?:Array\w+=\S+ )*)JobName=.*? (?=UserId=)"
    rest = re.sub(name, r"\1", text.strip())
    for key, value in re.findall(r"(?:^|\s)([A-Z]\w*)=(\S*)", rest):
        values.setdefault(key, value)
    return values


def _word(text: str) -> str:
    """Return the state without a suffix, as in ``CANCELLED by 1000`` and ``RUNNING+``."""
    match = re.match(r"[A-Z_]+", text.strip())
    return match[0] if match else text.strip()


def _value(text: str) -> str:
    return "" if text.strip() in _NOTHING else text.strip()


def _exit(text: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else (None, 0)


def _seconds(text: str) -> float | None:
    try:
        # Slurm prints the local time of this host, without a zone.
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


States = Mapping[tuple[str, str], JobState]  # by cluster and job id

_UNKNOWN = "Invalid job id"
# -r: a line for each element of an array, also of those that wait
_SHAPE = ("-h", "-r", "-t", "all", "-o", SQUEUE_FORMAT)
_CLOCKS_NS = 2_000_000_000  # the clocks of the nodes and the controller agree to within this


@dataclass(frozen=True)
class StateAnswer:
    """Slurm's answer about a job."""

    has_answered: bool  # whether Slurm answered
    # state of the job, None if Slurm has forgotten it or did not answer
    state: JobState | None = None


def _cluster(name: str) -> tuple[str, ...]:
    return ("-M", name) if name else ()


def state(job: JobRecord) -> StateAnswer:
    """Query the state of a job: with squeue while it lives, in full once it has ended."""
    result = commands.query("squeue", *_cluster(job.cluster), *_SHAPE, "-j", job.job_id)
    # A number that squeue no longer knows is an answer too: the job has ended.
    if result.status != 0 and _UNKNOWN not in result.err:
        return StateAnswer(has_answered=False)
    current = from_squeue(result.out).get(job.job_id)
    if current is not None and not current.ended:
        return StateAnswer(has_answered=True, state=current)
    return StateAnswer(has_answered=True, state=full(job) or current or forgotten(job))


def full(job: JobRecord) -> JobState | None:
    """Return the full state of a job, None if neither scontrol nor sacct knows the job."""
    where = _cluster(job.cluster)
    job_state = from_scontrol(
        commands.ask("scontrol", *where, "show", "job", "-o", job.job_id) or ""
    )
    if job_state is None:
        shape = ("-X", "-n", "-P", "-o", SACCT_FORMAT)
        answer = commands.ask("sacct", *where, *shape, "-j", job.job_id)
        job_state = from_sacct(answer or "")
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
            table = from_squeue(text)
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
    return JobState(job.job_id, CANCELLED, why)


def _table(cluster: str, ids: Sequence[str]) -> str | None:
    arrays = dict.fromkeys(number.partition("_")[0] for number in ids)
    result = commands.query("squeue", *_cluster(cluster), *_SHAPE, "-j", ",".join(arrays))
    is_forgotten = _UNKNOWN in result.err  # the only job in the list
    return result.out if result.status == 0 or is_forgotten else None


def last_start_ns(
    job: JobRecord,
    state: JobState | None,  # state of the job in Slurm, None if unknown
) -> int:
    """Return a lower bound of the time of the job's last start. Pure.

    Earlier events belong to an earlier start.
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
