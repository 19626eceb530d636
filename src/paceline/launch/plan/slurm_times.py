"""Find how long Slurm lets a job run after SIGTERM, by queries in the background at the start."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from paceline import env
from paceline.launch.plan.option_values import seconds_of

_ANSWER_S = 10.0


@dataclass(frozen=True)
class SlurmLimits:
    """Times that Slurm reports."""

    # KillWait: from SIGTERM at a time limit or scancel to SIGKILL; None if unknown
    kill_wait_s: float | None = None
    # GraceTime of the partition: the time of a preempted job; None if unknown or not set
    grace_s: float | None = None
    # when the time limit ends the job, on the monotonic clock; None if unknown or unlimited
    ends_s: float | None = None
    # Slurm sends a signal to all processes of a step, ranks too, and not to its tasks alone
    signals_all: bool = False


def shortest(own_s: int, limits: SlurmLimits, *, now_s: float) -> tuple[int, str]:
    """Return how long ranks have after Slurm's SIGTERM, and which limit that is.

    The limit is empty if it is the launcher's own. ``now_s`` is on the monotonic clock.
    """
    remaining_s = None if limits.ends_s is None or limits.ends_s <= now_s else limits.ends_s - now_s
    limits_s = [
        (limits.kill_wait_s, "Slurm's KillWait"),
        (limits.grace_s, "GraceTime of the partition"),
        (remaining_s, "the time limit of the job"),
    ]
    shorter = [
        (seconds, words) for seconds, words in limits_s if seconds is not None and seconds < own_s
    ]
    seconds, words = min(shorter, default=(float(own_s), ""))
    return int(seconds), words


def parse_reason(output: str) -> str:
    """Return why Slurm ends a job, from the last lines of the job's output: ``node failure``."""
    match = re.search(r"CANCELLED AT \S+ DUE TO ([A-Z ]*[A-Z])", output)
    return match[1].lower() if match else "time limit, preemption, scancel, or node failure"


def parse_config(text: str) -> float | None:
    """Return KillWait from ``scontrol show config``."""
    match = re.search(r"^KillWait\s*=\s*(\d+) sec", text, re.M)
    return float(match[1]) if match else None


def parse_tracking(text: str) -> bool:
    """Return whether signals reach all processes, from ``scontrol show config``.

    With cgroups only the tasks get them.
    """
    return bool(re.search(r"^ProctrackType\s*=\s*proctrack/linuxproc", text, re.M))


def parse_partition(text: str) -> float | None:
    """Return GraceTime from ``scontrol show partition``; None if there is none."""
    match = re.search(r"\bGraceTime=(\d+)", text)
    return float(match[1]) or None if match else None


def parse_job(text: str) -> tuple[str, float | None]:
    """Return partition and seconds left from ``squeue -o '%P|%L'``."""
    partition, _, remaining = text.strip().partition("|")
    return partition, seconds_of(remaining) or None


class Watcher:
    """Query Slurm once, in a background thread; ``limits`` has the answers so far."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.limits = SlurmLimits()
        job = environ.get(env.JOB_ID, "")
        if job.isdigit():
            threading.Thread(
                target=self._ask, args=(job,), name="paceline-slurm", daemon=True
            ).start()

    def _ask(self, job: str) -> None:
        partition, remaining_s = parse_job(
            _output("squeue", "--noheader", "--job", job, "--format", "%P|%L")
        )
        ends_s = time.monotonic() + remaining_s if remaining_s else None
        config = _output("scontrol", "show", "config")
        grace_s = parse_partition(
            _output("scontrol", "--oneliner", "show", "partition", partition or "no-partition")
        )
        self.limits = SlurmLimits(parse_config(config), grace_s, ends_s, parse_tracking(config))


def _output(*words: str) -> str:
    """Return what a command prints, empty if it is missing, fails or does not answer in time."""
    try:
        result = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return result.stdout
