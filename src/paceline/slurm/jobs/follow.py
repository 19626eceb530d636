"""``paceline follow``: show a job's output across all its starts, and exit with the run's status.

The output file is read often and Slurm is queried rarely, since its controller serves all users of
the cluster. The run's own events decide how it ended; without them the state in Slurm decides.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from paceline.errors import EXIT_FAILED, EXIT_OK
from paceline.launch.outcome import evidence
from paceline.rundir import events, sweeps
from paceline.rundir.events import Outcome
from paceline.rundir.files import RUNS, RunDir, open_file
from paceline.slurm import job_states, profile_files, record
from paceline.slurm.job_states import COMPLETED, COMPLETING, RUNNING, JobState
from paceline.slurm.jobs import explanations
from paceline.slurm.record import JobRecord
from paceline.text import terminal
from paceline.text.quoting import printable, word

_READ_S = 0.2
_ASK_S, _ASK_LATER_S, _LATER_AFTER_S = 2.0, 5.0, 60.0
_ASK_SELDOM_S, _SELDOM_AFTER_S = 30.0, 600.0  # a hundred jobs may be followed for days
_NO_OUTPUT_S = 10.0  # until then a file that a node writes usually becomes visible on other hosts
_LAST_LINES = 40
_LAST_LINES_S = 3.0  # time limit for the last lines to become visible
_MOVED_S = 600  # smaller changes of the expected start are not reported
_CHUNK = 1 << 16
# A start begins with the line of its plan and ends with one of the lines of _BLOCK.
_PLAN = re.compile(rb"^paceline: [0-9-]+ nodes? x ", re.M)
_BLOCK = re.compile("^── paceline |^paceline: run folder ".encode(), re.M)


def follow(
    subject: str | RunDir,  # a run folder, the name of one in ``paceline-runs/``, or a job id
) -> int:
    """Show a job's output until the job has ended; returns the exit status of its run.

    Raises UsageError if the run does not exist, or has no Slurm job.
    """
    if isinstance(subject, RunDir):
        run_dir, job = record.find(str(subject.root))
    else:
        run_dir, job = record.find(subject, places=profile_files.run_folders() or [RUNS])
    follower = Follower(run_dir, job)
    try:
        return follower.run()
    except KeyboardInterrupt:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        follower.say_goodbye()
        return 130


def _say(text: str) -> None:
    terminal.say(printable(text))


@dataclass
class _Notices:
    """Whether notices that are printed only once have been printed."""

    no_slurm: bool = False
    no_output: bool = False


class Follower:
    """Follows the output of a run, the state of its job, and the job's id, which may change."""

    def __init__(
        self,
        run_dir: RunDir,  # the run folder
        job: JobRecord,  # record of the job
        *,
        clock: Callable[[], float] = time.monotonic,  # returns the time in seconds; for tests
        sleep: Callable[[float], None] = time.sleep,  # sleeps for some seconds; for tests
    ) -> None:
        self._run_dir = run_dir
        self._job = job
        self._clock = clock
        self._sleep = sleep
        self._output = JobOutput(run_dir)
        self._notices = _Notices()
        self._last_state: JobState | None = None
        self._is_running = False
        self._has_run = False
        self._running_since: float | None = None
        self._ended_before = False

    def run(self) -> int:
        """Follow the job until it ends, and return the exit status."""
        try:
            return self._run()
        finally:
            self._output.close()

    def _run(self) -> int:
        started = self._clock()
        next_ask = started
        while True:
            self._output.show()
            now = self._clock()
            if now >= next_ask:
                status = self._check(now)
                if status is not None:
                    return status
                next_ask = self._clock() + self._pause_s(now - started)
            self._sleep(_READ_S)

    def _pause_s(self, followed_s: float) -> float:
        """Return the time until the next query of Slurm: short once the final report is printed."""
        if followed_s < _LATER_AFTER_S:
            return _ASK_S
        seldom = followed_s >= _SELDOM_AFTER_S and self._is_running and not self._output.has_block
        return _ASK_SELDOM_S if seldom else _ASK_LATER_S

    def say_goodbye(self) -> None:
        """Print that the job continues, and how to follow it again or end it."""
        job = self._job.job_id
        on = f"-M {self._job.cluster} " if self._job.cluster else ""
        again = f"paceline follow {word(str(self._run_dir.root))}"
        _say(f"job {job} continues; to follow it again: {again}; to end it: scancel {on}{job}")

    def _check(self, now: float) -> int | None:
        """Query Slurm and read the run folder; return the exit status if the job has ended."""
        self._reread_record()
        answer = job_states.state(self._job)
        state = answer.state
        self._is_running = state is not None and state.state == RUNNING
        if state is not None and not state.ended:
            return self._check_unfinished(state, now)
        return self._check_ended(answer)

    def _check_unfinished(self, state: JobState, now: float) -> int | None:
        """Report the state of a job that has not ended; return the exit status if it is certain."""
        self._ended_before = False
        self._report_state(state)
        self._report_missing_output(state, now)
        if state.state != COMPLETING:
            return None
        outcome = self._outcome(state)
        if outcome is None or outcome.lost:
            return None  # the job script may still queue the job again
        is_final = outcome.exit_status in (EXIT_OK, EXIT_FAILED)
        return self._end(state, outcome) if is_final else None

    def _check_ended(self, answer: job_states.StateAnswer) -> int | None:
        """Return the exit status of a job that Slurm does not show as living."""
        if not answer.has_answered and not self._notices.no_slurm:
            self._notices.no_slurm = True
            _say("squeue does not answer here: only the run folder is followed")
        outcome = self._outcome(answer.state)
        if answer.state is None and outcome is None and not answer.has_answered:
            return None  # the job may still run: continue to show its output
        has_succeeded = outcome is not None and outcome.exit_status == EXIT_OK
        if not self._ended_before and not has_succeeded:
            # check once more: the record of a new submission may appear a moment later
            self._ended_before = True
            return None
        return self._end(answer.state, outcome)

    def _reread_record(self) -> None:
        latest = record.read(self._run_dir)
        if latest is None or latest == self._job:
            return
        before, self._job = self._job, latest
        if latest.job_id != before.job_id:
            _say(
                f"job {before.job_id} was submitted again as job {latest.job_id}{self._progress()}"
            )
            self._last_state, self._ended_before = None, False

    def _progress(self) -> str:
        if self._job.requeues:
            step: int | None = self._job.requeues[-1].step
        else:
            last = evidence.last_checkpoint(self._run_dir.checkpoints)
            step = last.step if last else None
        if not step:
            return ""
        return f" after {step} step" if step == 1 else f" after {step} steps"

    def _report_state(self, state: JobState) -> None:
        """Print the state of the job, if it has changed."""
        if self._last_state is None and state.waits and not self._has_run:
            # squeue does not show whether the job was queued again before this command started
            full = job_states.full(self._job)
            self._has_run = full is not None and full.restarts > 0
        self._has_run = self._has_run or not state.waits or bool(self._job.requeues)
        if self._last_state is not None and _has_restarted(self._last_state, state):
            _say(f"job {state.job_id} was queued again{self._progress()}")
        words = describe(
            state, again=self._progress() if self._has_run else None, now_s=time.time()
        )
        if words and not (self._last_state and _is_unchanged(self._last_state, state)):
            _say(words)
            self._last_state = state

    def _report_missing_output(self, state: JobState, now: float) -> None:
        if state.state != RUNNING or self._output.is_open or self._notices.no_output:
            return
        self._running_since = self._running_since or now
        if now - self._running_since >= _NO_OUTPUT_S:
            self._notices.no_output = True
            where = f" on {state.nodes}" if state.nodes else ""
            path = self._run_dir.job_output
            _say(
                f"waiting for {path}, which job {state.job_id}{where} writes: it is not visible"
                " here yet"
            )

    def _outcome(self, state: JobState | None) -> Outcome | None:
        """Return how the last start of the run ended, None if there is no such event."""
        since_ns = job_states.last_start_ns(self._job, state)
        return events.read_history(self._run_dir.root, since_ns=since_ns).outcome

    def _end(self, state: JobState | None, outcome: Outcome | None) -> int:
        self._drain(until_block=outcome is not None)
        folder = str(self._run_dir.root)
        has_cause_in_slurm = state is not None and state.broke
        is_incomplete = outcome is not None and outcome.stopped and has_cause_in_slurm
        if outcome is not None and not is_incomplete:
            if not self._output.has_block:
                self._print(explanations.from_outcome(outcome, folder=folder).framed())
            if state is not None and state.state not in (COMPLETED, COMPLETING, "FAILED"):
                _say(f"Slurm has ended job {state.job_id}: {state.state}")
            return outcome.exit_status
        if state is not None and state.succeeded:
            _say(f"job {self._job.job_id} has succeeded; {folder} has no report of the run")
            return EXIT_OK
        tail = evidence.read_tail(self._run_dir.job_output, lines=_LAST_LINES)
        if is_incomplete:  # the run's own final report has just been shown
            tail = tuple(line for line in tail if line.startswith(("srun: error", "slurmstepd")))
        where, script = (
            str(self._run_dir.job_output),
            str(sweeps.job_script(self._run_dir, self._job.job_id)),
        )
        finding = explanations.judge(state, self._job, log=where, tail=tail, script=script)
        report = explanations.report(finding, folder=folder)
        self._print(report.framed())
        return report.exit_status

    def _drain(self, *, until_block: bool) -> None:
        """Show the rest of the output, which a file server may deliver after the job has ended."""
        deadline = self._clock() + _LAST_LINES_S

        def is_awaited() -> bool:
            return until_block and not self._output.has_block and self._clock() < deadline

        while self._output.show() or is_awaited():
            self._sleep(_READ_S)

    def _print(self, lines: list[str]) -> None:
        sys.stdout.flush()
        terminal.show("\n".join(lines), sys.stderr)


def describe(
    state: JobState,
    *,
    again: str | None,  # how far a run that has run before is: " after 100 steps"
    now_s: float,
) -> str:
    """Return the state of a job in one line, empty if there is nothing to report. Pure."""
    name = f"job {state.job_id}"
    if state.waits:
        what = f"is queued again{again}" if again is not None else "is pending"
        reason = f" ({state.reason})" if state.reason else ""
        meaning = explanations.explain(state.reason, again=again is not None)
        expected = f", expected to start {_clock_of(state.start_s, now_s)}" if state.start_s else ""
        return f"{name} {what}{reason}{expected}" + (f": {meaning}" if meaning else "")
    on = f" on {state.nodes}" if state.nodes else ""
    if state.state == RUNNING:
        return f"{name} runs{on}"
    if state.state == COMPLETING:
        return ""
    return f"{name} is {state.state.lower()}{on}"


def _has_restarted(earlier: JobState, later: JobState) -> bool:
    """Return whether a job was started again between two queries that both saw it running."""
    if earlier.state != RUNNING or later.state != RUNNING:
        return False
    if earlier.start_s is None or later.start_s is None:
        return False
    return later.start_s > earlier.start_s


def _is_unchanged(earlier: JobState, later: JobState) -> bool:
    """Return whether there is nothing new to report.

    The expected start of a pending job changes all the time.
    """
    if (earlier.state, earlier.reason, earlier.nodes) != (later.state, later.reason, later.nodes):
        return False
    if not later.waits:
        return not _has_restarted(earlier, later)
    if later.start_s is None:
        return True
    return earlier.start_s is not None and abs(earlier.start_s - later.start_s) < _MOVED_S


def _clock_of(at_s: float, now_s: float) -> str:
    at, now = time.localtime(at_s), time.localtime(now_s)
    return time.strftime("%H:%M" if at[:3] == now[:3] else "%Y-%m-%d %H:%M", at)


class JobOutput:
    """A file that grows, and may not exist yet."""

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.job_output
        self._file: IO[bytes] | None = None
        self.tail = b""  # the last bytes that were shown

    @property
    def is_open(self) -> bool:
        """Whether the file has been opened."""
        return self._file is not None

    @property
    def has_block(self) -> bool:
        """Whether the final report of the run's last start has been shown."""
        begins = max((match.start() for match in _PLAN.finditer(self.tail)), default=-1)
        return any(match.start() > begins for match in _BLOCK.finditer(self.tail))

    def show(self) -> bool:
        """Copy new output to stdout, and return whether there was any."""
        if self._file is None:
            try:
                self._file = open_file(self._path)
            except OSError:
                return False
        has_new = False
        while chunk := self._read():
            has_new = True
            self.tail = (self.tail + chunk)[-_CHUNK:]
            out = getattr(sys.stdout, "buffer", None)
            if out is not None:
                out.write(chunk)
            else:  # stdout was replaced by a text stream
                sys.stdout.write(chunk.decode("utf-8", "replace"))
        if has_new:
            sys.stdout.flush()
        return has_new

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                # truncated by a job script of the user without --open-mode=append
                self._file.seek(0)
            chunk = self._file.read(_CHUNK)
            if not chunk and not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                self._file.close()  # the path now names the output of a later job
                self._file = open_file(self._path)
                chunk = self._file.read(_CHUNK)
            return chunk
        except OSError:  # the file server may be unavailable for a moment
            return b""
