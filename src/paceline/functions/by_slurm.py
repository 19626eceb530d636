"""Jobs of functions that Slurm runs: how they have ended, their state, and their cancellation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import SetupError, UsageError
from paceline.functions import endings
from paceline.functions.endings import JobEnd, Seen
from paceline.launch.outcome import evidence
from paceline.rundir import events, sweeps
from paceline.rundir.files import RunDir
from paceline.slurm import job_states, record
from paceline.slurm.job_states import JobState
from paceline.slurm.jobs import cancel as cancelling
from paceline.slurm.jobs import run_rows
from paceline.slurm.record import JobRecord
from paceline.slurm.sweep import sweep_submit

_ASK_S, _ASK_LATER_S, _LATER_AFTER_S = 2.0, 10.0, 60.0
# The record of a new submission may appear a moment after the end of the old job.
_SURE_AFTER_S = 1.0
_TAIL_LINES = 40

_Key = tuple[str, str]  # cluster and job id


@dataclass
class EndedJob:
    """A job that Slurm does not show as living."""

    state: JobState | None  # its state, None if Slurm has forgotten it
    since_s: float  # when that was first seen


class Queue:
    """Slurm's answers about the jobs of this process: asked for all of them at once, and rarely.

    Its controller serves all users of the cluster. A job that ends as usual is known from its run
    folder before.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,  # in seconds; for tests
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._living: dict[_Key, JobRecord] = {}
        self._ended: dict[_Key, EndedJob] = {}
        self._states: job_states.States = {}
        self._first_s = self._last_s = -float("inf")

    def ended(self, job: JobRecord) -> EndedJob | None:
        """Return how Slurm shows a job that has certainly ended, None for others."""
        key = (job.cluster, job.job_id)
        with self._lock:
            self._watch(job)
            now_s = self._clock()
            if now_s - self._last_s >= self._pause_s(now_s):
                self._ask(now_s)
            ended = self._ended.get(key)
            is_sure = ended is not None and now_s - ended.since_s >= _SURE_AFTER_S
            return ended if is_sure else None

    def states(self, job: JobRecord) -> job_states.States:
        """Return the states of all jobs that this process watches, with this one."""
        with self._lock:
            is_new = self._watch(job)
            now_s = self._clock()
            if is_new or now_s - self._last_s >= _ASK_S:
                self._ask(now_s)
            return self._states

    def _watch(self, job: JobRecord) -> bool:
        """Add a job to those that Slurm is asked about; return whether it is new."""
        key = (job.cluster, job.job_id)
        if key in self._ended or key in self._living:
            return False
        self._living[key] = job
        return True

    def _pause_s(self, now_s: float) -> float:
        return _ASK_LATER_S if now_s - self._first_s > _LATER_AFTER_S else _ASK_S

    def _ask(self, now_s: float) -> None:
        if not self._living:
            return
        states, silent = job_states.states(self._living.values())
        self._last_s = now_s
        if self._first_s < 0:
            self._first_s = now_s
        self._states = states
        for key, job in list(self._living.items()):
            if job.cluster in silent:
                continue  # no answer is no news
            state = states.get(key)
            if state is not None and not state.ended:
                continue
            del self._living[key]
            # In full and at once: scontrol forgets a job minutes after its end (MinJobAge).
            self._ended[key] = EndedJob(job_states.full(job) or state, now_s)


_queue = Queue()


def end(run_dir: RunDir) -> JobEnd | None:
    """Return how a job has ended for good, None if it has not."""
    job = require_record(run_dir)
    outcome = _outcome(run_dir, job, None)
    # the folder of a job that was submitted again also has the outcome of the earlier one
    if outcome is not None and endings.is_final(outcome) and not job.earlier_ids:
        return endings.of_outcome(outcome)
    ended = _queue.ended(job)
    return _end(run_dir, job, ended.state) if ended is not None else None


def _outcome(run_dir: RunDir, job: JobRecord, state: JobState | None) -> events.Outcome | None:
    since_ns = job_states.last_start_ns(job, state)
    return events.read_history(run_dir.root, since_ns=since_ns).outcome


def _end(run_dir: RunDir, job: JobRecord, state: JobState | None) -> JobEnd:
    script = sweeps.job_script(run_dir, job.job_id)
    facts = Seen(
        state=state,
        record=job,
        output=str(run_dir.job_output),
        script=str(script),
        tail=evidence.read_tail(run_dir.job_output, lines=_TAIL_LINES),
        signal_s=_signal_s(script),
    )
    return endings.of_job(_outcome(run_dir, job, state), facts)


def _signal_s(script: Path) -> float:
    """Return how long before the time limit the stop signal comes, 0 if that is unknown."""
    try:
        _, _, seconds = sweep_submit.directives_of(script).get("signal", "").partition("@")
    except SetupError:
        return 0.0
    return float(seconds) if seconds.isdecimal() else 0.0


def status(run_dir: RunDir) -> str:
    """Return the state of a job in one word, as ``paceline jobs`` shows it."""
    job = require_record(run_dir)
    return run_rows.row(run_dir, job, _queue.states(job)).state


def number(run_dir: RunDir) -> str:
    """Return the id of a job in Slurm."""
    return require_record(run_dir).job_id


def cancel(run_dir: RunDir) -> None:
    """End a job for good, if it has not ended."""
    cancelling.end_living([(run_dir, require_record(run_dir))])


def require_record(run_dir: RunDir) -> JobRecord:
    """Return the record of a job; raise UsageError if the folder has none."""
    job = record.read(run_dir)
    if job is not None:
        return job
    raise UsageError.of(
        "slurm-job-unknown",
        f"{run_dir.root} is not the run folder of a job",
        where=str(run_dir.root),
        fix="paceline jobs, in the folder that the job was submitted from",
    )
