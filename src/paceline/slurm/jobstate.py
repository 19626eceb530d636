"""Parse the state of Slurm jobs from the output of squeue, scontrol and sacct. Pure.

The three commands know different things: squeue lists many jobs at once; scontrol shows one in
full, and forgets it minutes after its end (``MinJobAge``); sacct remembers old jobs, if the site
has accounting.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.launch.plan.option_values import seconds_of

# Output formats of squeue and sacct; a reason may contain anything but the bar.
SQUEUE_FORMAT = "%i|%T|%N|%S|%r"
SACCT_FORMAT = "JobIDRaw,State,NodeList,Start,ExitCode,Reason"

PENDING, RUNNING, COMPLETING, COMPLETED = "PENDING", "RUNNING", "COMPLETING", "COMPLETED"
CANCELLED = "CANCELLED"
# Final states.
_ENDED = frozenset(
    {
        *(COMPLETED, "FAILED", CANCELLED, "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"),
        *("BOOT_FAIL", "DEADLINE", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
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
    state: str  # slurm's name of the state: ``PENDING``, ``RUNNING``, ``COMPLETED``, ``TIMEOUT``
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
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
