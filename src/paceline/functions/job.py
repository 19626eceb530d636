"""A job from outside: what it returns or raises, its status, its logs, and how to cancel it.

Everything is read from its run folder, so other processes can ask a job, also after the process
that submitted it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_FAILED, Finding, RunError
from paceline.functions import by_machine, by_slurm, pickles
from paceline.functions.endings import JobEnd
from paceline.launch.outcome import evidence
from paceline.launch.outcome.rank_exit import Failure
from paceline.rundir import files, ownership, sweeps
from paceline.rundir.files import RUNS, RunDir, read_text
from paceline.slurm import profile_files, record
from paceline.slurm.sweep import sweep_folder
from paceline.text.quoting import printable_lines

# Files are read again after a twentieth of the time waited so far, within these bounds.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_VISIBLE_S = 10.0  # until then a file that a node has written usually becomes visible elsewhere


class JobError(RunError):
    """A job has failed, was cancelled, or ran out of time.

    Its ``__cause__`` is the exception of the function, if what it holds can be pickled.

    Attributes:
        finding: Why, as ``paceline run`` reports it.
        traceback: The traceback of the function as text; empty if no exception ended it.
    """

    def __init__(self, finding: Finding, traceback: str = "") -> None:
        super().__init__(finding)
        self.traceback = traceback

    def __str__(self) -> str:
        text = self.finding.render()
        if self.traceback:
            text += f"\n\n{self.traceback.rstrip()}"
        return printable_lines(text)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.finding, self.traceback), {"exit_status": self.exit_status}


class Job:
    """A function that runs as a job.

    ``await job`` waits for it in an asyncio program, and returns its result.

    Args:
        subject: Its run folder, the name of that, or its id in Slurm.

    Raises:
        UsageError: The job does not exist.
        SetupError: Its files belong to another user who does not show them, which every method
            finds out; or, to cancel it, who does not let others write them.
    """

    def __init__(self, subject: str | os.PathLike[str]) -> None:
        with _permitted():
            self._run_dir = RunDir(_folder_of(os.fspath(subject)))
        # Found by its name or id the folder may be anybody's, and a pickle runs code.
        self._is_found = self._run_dir.root != Path(subject).absolute()
        self._end: JobEnd | None = None

    @classmethod
    def load_all(cls, subject: str | os.PathLike[str]) -> list[Job]:
        """Return the jobs of a ``paceline.map``, in the order of its items.

        Args:
            subject: Its folder, the name of that, or the id of its array in Slurm.

        Raises:
            UsageError: The folder does not exist, is not that of a map, or was found by its name or
                id and belongs to others.
        """
        text = os.fspath(subject)
        if by_machine.is_queue(Path(text)):
            return [cls(folder) for folder in by_machine.jobs_of(Path(text))]
        folder, sweep_record = sweep_folder.require(text, places=_places())
        if folder != Path(text):
            fix = f"paceline.Job.load_all({str(folder.absolute())!r})"
            ownership.require(folder, fix=fix, trusts_group=True)
        return [cls(sweeps.folder_of(folder, index)) for index in sorted(sweep_record.elements)]

    def __repr__(self) -> str:
        return f"<paceline.Job {self.id} {self.folder}>"

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._run_dir.root

    @property
    def id(self) -> str:
        """The id in Slurm, ``4711`` or ``4711_2``; ``"local"`` for a job of this machine."""
        return by_machine.ID if self._is_local else by_slurm.number(self._run_dir)

    @property
    def status(self) -> str:
        """One word: ``pending``, ``running``, ``succeeded``, ``failed``, ``cancelled``, ..."""
        if self.done() and self._end is not None:
            return self._end.word
        with _permitted():
            if self._is_local:
                return by_machine.status(self._run_dir)
            return by_slurm.status(self._run_dir)

    def done(self) -> bool:
        """Return whether the job has ended, and is not queued again."""
        if self._end is None:
            with _permitted():
                place = by_machine if self._is_local else by_slurm
                self._end = place.end(self._run_dir)
        return self._end is not None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the job, and return what the function has returned on rank 0.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            JobError: The job has failed, was cancelled, or ran out of time.
            TimeoutError: The job has not ended in time; it continues.
            UsageError: The job was given by its name or id, and others own or may write its result.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        with _permitted():
            return self._load(self._run_dir.result)

    def exception(self, timeout: float | None = None) -> JobError | None:
        """Wait for the job, and return why it has no result, None if it has one.

        Args:
            timeout: Seconds to wait; None waits as long as it takes.

        Raises:
            TimeoutError: The job has not ended in time; it continues.
        """
        list(as_completed([self], timeout))
        return self._error()

    def logs(self, rank: int | None = None) -> str:
        """Return what the job has printed so far.

        Args:
            rank: One rank, whose last start is shown; None shows the console of the launcher, with
                the lines of rank 0.
        """
        paths = []
        if rank is not None:
            attempts = reversed(range(self._run_dir.next_attempt()))
            paths += [self._run_dir.log(rank, attempt) for attempt in attempts]
        if not rank:  # without a launcher, rank 0 writes to the console
            paths += [self._run_dir.job_output, self._run_dir.local_output]
        with _permitted():
            path = next((path for path in paths if path.exists()), None)
            return read_text(path) if path else ""

    def cancel(self) -> None:
        """End the job for good, and return at once; a job that has ended stays as it is."""
        with _permitted("folder-not-writable", "the job cannot be cancelled"):
            place = by_machine if self._is_local else by_slurm
            place.cancel(self._run_dir)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        start_s = time.monotonic()
        # in a thread, since squeue and a network file system may take seconds
        while not await asyncio.to_thread(self.done):
            await asyncio.sleep(_pause_s(time.monotonic() - start_s))
        return await asyncio.to_thread(self.result)

    @property
    def _is_local(self) -> bool:
        return by_machine.knows(self._run_dir)

    def _load(self, path: Path) -> Any:
        """Unpickle a file of the run folder, which must be this user's if it was found."""
        if self._is_found:
            fix = f"paceline.Job({str(self._run_dir.root)!r})"
            ownership.require(path, fix=fix, trusts_group=True)
        return pickles.load(path)

    def _error(self) -> JobError | None:
        assert self._end is not None
        if self._end.finding is None and _becomes_visible(self._run_dir.result):
            return None
        failure, cause = _raised(self._run_dir, self._load)
        finding = self._end.finding or _no_result(self._run_dir)
        error = JobError(finding, failure.traceback if failure else "")
        error.exit_status = self._end.exit_status or EXIT_FAILED
        error.__cause__ = cause
        return error


@contextlib.contextmanager
def _permitted(
    name: str = "input-unreadable", what: str = "the files of the job cannot be read"
) -> Iterator[None]:
    """Turn a PermissionError, as of the files of another user's job, into a finding."""
    try:
        yield
    except PermissionError as error:
        raise files.not_permitted(error, name=name, what=what) from None


def as_completed(jobs: Iterable[Job], timeout: float | None = None) -> Iterator[Job]:
    """Yield jobs in the order in which they end.

    Args:
        jobs: Jobs of ``paceline.submit`` and ``paceline.map``.
        timeout: Seconds to wait for all of them; None waits as long as it takes.

    Raises:
        TimeoutError: Jobs have not ended in time; they continue.
    """
    remaining = list(jobs)
    start_s = time.monotonic()
    while remaining:
        ended = [job for job in remaining if job.done()]
        yield from ended
        yielded = set(ended)  # another one may end at any moment
        remaining = [job for job in remaining if job not in yielded]
        if not remaining:
            return
        waited_s = time.monotonic() - start_s
        if timeout is not None and waited_s >= timeout:
            raise TimeoutError(f"{len(remaining)} of the jobs have not ended after {timeout:g} s")
        left_s = _LONGEST_PAUSE_S if timeout is None else timeout - waited_s
        time.sleep(min(_pause_s(waited_s), left_s))


def _pause_s(waited_s: float) -> float:
    return min(max(_SHORTEST_PAUSE_S, waited_s / 20), _LONGEST_PAUSE_S)


def _folder_of(subject: str) -> Path:
    for folder in (Path(subject), *(runs / subject for runs in _places())):
        if by_machine.knows(RunDir(folder)):
            return folder.absolute()
    run_dir, _ = record.find(subject, places=_places())
    return run_dir.root.absolute()


def _places() -> list[Path]:
    return profile_files.run_folders() or [RUNS]


def _becomes_visible(path: Path) -> bool:
    """Wait for a file that another machine has written; return whether it is there."""
    deadline_s = time.monotonic() + _VISIBLE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_SHORTEST_PAUSE_S)
    return True


def _no_result(run_dir: RunDir) -> Finding:
    return Finding(
        "cause-unknown",
        "the run has succeeded, and its result is missing",
        where=str(run_dir.result),
        fix="look whether the file was deleted, and submit the function again",
    )


def _raised(
    run_dir: RunDir, load: Callable[[Path], Any]
) -> tuple[Failure | None, BaseException | None]:
    """Return the first exception of the last start: as recorded, and as an object if possible."""
    recorded = [
        (failure, _rank_of(path))
        for path in _error_files(run_dir)
        if (failure := evidence.read_failure(path)) is not None
    ]
    if not recorded:
        return None, None
    failure, rank = min(recorded, key=lambda pair: pair[0].time_ns)
    return failure, _unpickled(run_dir.exception(rank), load)


def _error_files(run_dir: RunDir) -> list[Path]:
    pattern = run_dir.error(0, run_dir.next_attempt() - 1).name.replace("000", "*", 1)
    others = ".attempt-" if ".attempt-" not in pattern else "\0"
    return [path for path in run_dir.error(0).parent.glob(pattern) if others not in path.name]


def _rank_of(path: Path) -> int:
    return int(path.name.split(".")[0].removeprefix("rank-"))


def _unpickled(path: Path, load: Callable[[Path], Any]) -> BaseException | None:
    """Return an exception from its file, None if it cannot be made again here."""
    try:
        error = load(path)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
