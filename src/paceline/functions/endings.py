"""Decide how a job has ended, from the events of its run and what Slurm says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import EXIT_FAILED, EXIT_OK, EXIT_UNFINISHED, Finding
from paceline.rundir.events import Outcome
from paceline.slurm.job_states import JobState
from paceline.slurm.jobs import explanations
from paceline.slurm.record import JobRecord
from paceline.slurm.request import clock

# Slurm sends the signal of --signal up to a minute before its time (sbatch(1)).
_EARLY_S = 60.0
_BY_SLURM = ("CANCELLED", "TIMEOUT", "PREEMPTED")
SUCCEEDED, _TIMEOUT, _UNKNOWN = "succeeded", "timeout", "unknown"


@dataclass(frozen=True)
class JobEnd:
    """The end of a job."""

    word: str = SUCCEEDED  # ``"succeeded"``, ``"failed"``, ``"cancelled"``, ``"timeout"``, ..
    finding: Finding | None = None  # why it has failed or stopped; None after a success
    exit_status: int = EXIT_OK  # exit status of its run


@dataclass(frozen=True)
class Seen:
    """What is known of a job that has ended."""

    state: JobState | None  # state in Slurm, None if Slurm has forgotten it
    record: JobRecord  # record of the job
    output: str  # path of its output
    script: str  # path of its job script
    tail: Sequence[str] = ()  # last lines of the output
    signal_s: float = 0.0  # seconds before the time limit at which Slurm sends the stop signal


def is_final(outcome: Outcome | None) -> bool:
    """Return whether an outcome is that of the job, so that Slurm need not be asked.

    The job script queues a job again only if it has stopped unfinished or has lost a node.
    """
    if outcome is None or outcome.lost:
        return False
    return outcome.exit_status in (EXIT_OK, EXIT_FAILED)


def of_outcome(outcome: Outcome) -> JobEnd:
    """Return the end that the launcher of the run has recorded."""
    if outcome.exit_status == EXIT_OK:
        return JobEnd()
    finding = outcome.findings[0] if outcome.findings else _without_finding(outcome)
    return JobEnd(outcome.word, finding, outcome.exit_status)


def of_job(outcome: Outcome | None, seen: Seen) -> JobEnd:
    """Return how a job has ended; ``outcome`` is that of its last start, None if unrecorded."""
    state = seen.state
    if outcome is not None and not _is_slurms(outcome, state):
        if limit := _time_limit(outcome, seen):
            return JobEnd(_TIMEOUT, limit, outcome.exit_status)
        return of_outcome(outcome)
    if outcome is None and state is not None and state.succeeded:
        return JobEnd()
    finding = explanations.judge(
        state, seen.record, log=seen.output, tail=seen.tail, script=seen.script
    )
    word = state.state.lower() if state is not None else _UNKNOWN
    return JobEnd(word, finding, outcome.exit_status if outcome else EXIT_FAILED)


def _is_slurms(outcome: Outcome, state: JobState | None) -> bool:
    """Return whether Slurm knows the cause: all that the run got is a signal."""
    if state is None or not outcome.stopped:
        return False
    return state.broke or state.state in _BY_SLURM


def _time_limit(outcome: Outcome, seen: Seen) -> Finding | None:
    """Return the finding for a run that got Slurm's stop signal before its time limit."""
    state = seen.state
    if state is None or not outcome.stopped or outcome.exit_status == EXIT_UNFINISHED:
        return None  # one that has saved is queued again, and is no failure
    if state.limit_s is None or state.start_s is None:
        return None
    ran_s = outcome.time_ns / 1e9 - state.start_s
    if ran_s < state.limit_s - seen.signal_s - _EARLY_S:
        return None
    name = f"job {seen.record.job_id}" + (f" ({seen.record.name})" if seen.record.name else "")
    return Finding(
        "slurm-time-limit",
        f"{name} ran out of time: it ended at the stop signal, {seen.signal_s:.0f} s before its"
        f" time limit of {clock(state.limit_s)}",
        where=seen.output,
        evidence=(f"it ran for {clock(max(0.0, ran_s))}",),
        why=f"a function that saves at SIGTERM and ends with sys.exit({EXIT_UNFINISHED}) continues"
        " in the next job",
        fix="a longer time=",
    )


def _without_finding(outcome: Outcome) -> Finding:
    return Finding(
        "cause-unknown",
        f"the run ended with status {outcome.exit_status}, and has recorded no cause",
        fix="job.logs() has its output",
    )
