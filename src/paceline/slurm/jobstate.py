"""What Slurm says of a job, from the texts of squeue, scontrol and sacct. Pure.

Three commands know different things: squeue tells all jobs of a table at once, scontrol tells one in full and forgets
it minutes after its end (``MinJobAge``), sacct remembers where a site keeps accounts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

# What squeue and sacct are asked for; a reason may hold anything but the bar.
SQUEUE_FORMAT = "%i|%T|%N|%S|%r"
SACCT_FORMAT = "JobIDRaw,State,NodeList,Start,ExitCode,Reason"

PENDING, RUNNING, COMPLETING, COMPLETED = "PENDING", "RUNNING", "COMPLETING", "COMPLETED"
# Out of these a job does not come by itself.
_ENDED = frozenset(
    {
        *(COMPLETED, "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"),
        *("BOOT_FAIL", "DEADLINE", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
    }
)
# Of these no run knows: it only hears that it is to end.
_BROKEN = frozenset({"NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_WAITING = frozenset({PENDING, "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_NOTHING = frozenset({"", "(null)", "None", "N/A", "Unknown", "None assigned"})


@dataclass(frozen=True)
class JobState:
    """A job as Slurm sees it.

    Attributes:
        job_id: Its number.
        state: Slurm's word in full: ``PENDING``, ``RUNNING``, ``COMPLETED``, ``TIMEOUT``.
        reason: Why it waits or has ended; empty where Slurm names none.
        nodes: Its nodes as Slurm writes them, ``node[1-2]``.
        start_s: When it started or is expected to; None where that is not known.
        exit_code: Exit status of its script; None where that is not told.
        signal: The signal that ended its script, 0 if none did.
        restarts: How often it was queued again under this number.
        requeue: Whether it may be queued again; None where that is not told.
        excluded: Nodes that it must not have.
        limit_s: Its time limit; None where that is not told, or there is none.
    """

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    start_s: float | None = None
    exit_code: int | None = None
    signal: int = 0
    restarts: int = 0
    requeue: bool | None = None
    excluded: str = ""
    limit_s: float | None = None

    @property
    def ended(self) -> bool:
        """The job does not go on."""
        return self.state in _ENDED

    @property
    def waits(self) -> bool:
        """The job is in the queue."""
        return self.state in _WAITING

    @property
    def broke(self) -> bool:
        """It was ended by what its run cannot know: all that a run hears then is a signal."""
        return self.state in _BROKEN

    @property
    def succeeded(self) -> bool:
        """Slurm calls it completed."""
        return self.state == COMPLETED


def from_squeue(text: str) -> dict[str, JobState]:
    """Return the jobs of ``squeue -h -o SQUEUE_FORMAT`` by their numbers."""
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
    """Return the job of ``scontrol show job -o``, None if the text tells of none."""
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
        limit_s=_limit(values.get("TimeLimit", "")),
    )


def from_sacct(text: str) -> JobState | None:
    """Return the job of ``sacct -X -n -P -o SACCT_FORMAT``, None if the text tells of none."""
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
    """Return ``Key=value`` of one line; the first counts, since a name or a path may look like another pair."""
    values: dict[str, str] = {}
    # the job's name comes second and may hold anything, so the rest is looked for behind the first field after it
    rest = re.sub(r"^(JobId=\S+ )JobName=.*? (?=UserId=)", r"\1", text.strip())
    for key, value in re.findall(r"(?:^|\s)([A-Z]\w*)=(\S*)", rest):
        values.setdefault(key, value)
    return values


def _word(text: str) -> str:
    """``CANCELLED by 1000`` and ``RUNNING+`` are states with something behind."""
    match = re.match(r"[A-Z_]+", text.strip())
    return match[0] if match else text.strip()


def _value(text: str) -> str:
    return "" if text.strip() in _NOTHING else text.strip()


def _exit(text: str) -> tuple[int | None, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    return (int(match[1]), int(match[2])) if match else (None, 0)


def _limit(text: str) -> float | None:
    """Return the seconds of ``1-12:00:00``, None for ``UNLIMITED``."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _seconds(text: str) -> float | None:
    try:
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
