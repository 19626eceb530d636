"""Jobs of functions that this machine runs without Slurm: start them, and ask for their state.

One process in the background, ``machine_queue``, stands for Slurm: it starts the jobs of a folder,
so many at a time, and outlives the process that submitted them. All that it says is in files.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import EXIT_FAILED, EXIT_OK, Finding, SetupError, UsageError
from paceline.functions import endings
from paceline.functions.endings import JobEnd
from paceline.machine import own_process, processes
from paceline.rundir import events, owned
from paceline.rundir.files import RunDir, read_json, write_whole

ID = "local"  # of all these jobs
RUN_DIR = "{run_dir}"  # in the command of a queue: the run folder of the job
VERSION = 1
PENDING, RUNNING, ENDED = "pending", "running", "ended"
CANCELLED, KILLED, FAILED = "cancelled", "killed", "failed"
_MOST_BYTES = 1 << 24
_STOPPED = 143  # of a job that has never started


@dataclass(frozen=True)
class LocalState:
    """State of one job."""

    queue: str  # path of the file of the queue that starts it
    state: str = PENDING  # ``"pending"``, ``"running"`` or ``"ended"``
    status: int | None = None  # exit status of its run, None before its end
    cancelled: bool = False  # whether it ended because it was cancelled
    since_ns: int = 0  # start of its last start; earlier events belong to an earlier one

    def write(self, run_dir: RunDir) -> None:
        """Write the state into the run folder of its job.

        Raises OSError if the folder cannot be written.
        """
        write_whole(run_dir.local, json.dumps({"version": VERSION, **asdict(self)}) + "\n")


@dataclass(frozen=True)
class LocalQueue:
    """What one process starts."""

    jobs: tuple[str, ...]  # run folders of the jobs, in their order
    parallel: int  # how many run at a time
    command: tuple[str, ...]  # the command that starts one, with ``{run_dir}`` for its run folder
    # ``CUDA_VISIBLE_DEVICES`` of each of the jobs that run together; empty if they share what this
    # machine has
    gpus: tuple[str, ...] = ()
    pid: int = 0  # the process; 0 before it has started
    host: str = ""  # its machine
    time_s: float = 0.0  # a time at which it was alive, in seconds since the epoch

    def write(self, folder: Path) -> None:
        """Write the queue into its folder; raise OSError if the folder cannot be written."""
        text = json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"
        write_whole(RunDir(folder).local_queue, text)

    @property
    def is_alive(self) -> bool:
        """Whether its process lives, as far as that is known on this host."""
        if not self.pid:
            return False
        return processes.is_alive(self.host, self.pid, self.time_s) is not False


def read_queue(path: Path) -> LocalQueue:
    """Return a queue from its file.

    Raises OSError if the file cannot be read; ValueError if it is not the file of a queue.
    """
    values = _values(path)
    try:
        lists = ("jobs", "command", "gpus")
        jobs, command, gpus = (tuple(map(str, values.pop(name))) for name in lists)
        return LocalQueue(jobs=jobs, command=command, gpus=gpus, **values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a queue: {error}") from None


def _values(path: Path) -> dict[str, Any]:
    values = read_json(path, most_bytes=_MOST_BYTES)
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise ValueError(f"not of version {VERSION}")
    return values


def read(run_dir: RunDir) -> LocalState | None:
    """Return the state of a job, None if the folder is not that of a job of this machine.

    Raises PermissionError if this user may not read it.
    """
    try:
        return LocalState(**_values(run_dir.local))
    except PermissionError:
        raise  # nothing is known of a job that this user may not read
    except (OSError, ValueError, TypeError):
        return None


def knows(run_dir: RunDir) -> bool:
    """Return whether a folder is that of a job of a machine without Slurm."""
    return run_dir.local.exists()


def is_queue(folder: Path) -> bool:
    """Return whether a folder is that of jobs of a machine without Slurm."""
    return RunDir(folder).local_queue.exists()


def jobs_of(folder: Path) -> list[Path]:
    """Return the run folders of all jobs of a folder, in their order."""
    path = RunDir(folder).local_queue
    try:
        return [Path(job) for job in read_queue(path).jobs]
    except (OSError, ValueError) as error:
        what = f"the list of the jobs of {folder} cannot be read: {error}"
        fix = "paceline.Job(FOLDER) for each of its folders"
        raise UsageError.of("input-unreadable", what, where=str(path), fix=fix) from None


def start(folder: Path, queue: LocalQueue) -> None:
    """Start the process that starts the jobs of a folder.

    Raises OSError if a file cannot be written; SetupError if the process has not started.
    """
    queue.write(folder)
    for job in queue.jobs:
        LocalState(str(RunDir(folder).local_queue)).write(RunDir(Path(job)))
    words = own_process.command(str(folder), module="paceline.functions.machine_queue")
    with owned.append(folder / "queue.out") as output:
        ended = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    if ended.returncode != EXIT_OK:
        raise SetupError(_not_started(folder))


def end(run_dir: RunDir) -> JobEnd | None:
    """Return how a job has ended for good, None if it has not."""
    state = read(run_dir)
    if state is not None and state.state != ENDED and not _queue_lives(state):
        state = read(run_dir)  # its last words may have come in between
        if state is not None and state.state != ENDED:
            return JobEnd(KILLED, _killed(state), EXIT_FAILED)
    if state is None or state.state != ENDED:
        return None
    if state.cancelled:
        return JobEnd(CANCELLED, _cancelled(run_dir, state), state.status or _STOPPED)
    outcome = events.read_history(run_dir.root, since_ns=state.since_ns).outcome
    if outcome is not None:
        return endings.of_outcome(outcome)
    return JobEnd(FAILED, _no_outcome(run_dir, state), state.status or EXIT_FAILED)


def _queue_lives(state: LocalState) -> bool:
    try:
        return read_queue(Path(state.queue)).is_alive
    except PermissionError:
        raise  # of another user's jobs, which are not dead because they are hidden
    except (OSError, ValueError):
        return False


def status(run_dir: RunDir) -> str:
    """Return the state of a job that has not ended, in one word."""
    state = read(run_dir)
    return state.state if state is not None else PENDING


def cancel(run_dir: RunDir) -> None:
    """End a job for good, if it has not ended; its queue sees the file within moments."""
    if end(run_dir) is None:
        owned.append(run_dir.cancelled).close()


def new_queue(
    jobs: Sequence[Path], *, parallel: int, command: Sequence[str], gpus: Sequence[str] = ()
) -> LocalQueue:
    """Return the queue of some jobs, whose process has not started."""
    return LocalQueue(
        jobs=tuple(map(str, jobs)),
        parallel=parallel,
        command=tuple(command),
        gpus=tuple(gpus),
        host=socket.gethostname(),
        time_s=time.time(),
    )


def shares(devices: Sequence[str], *, per_job: int) -> tuple[str, ...]:
    """Return the GPUs of each job that can run together, as CUDA_VISIBLE_DEVICES has them.

    Raises UsageError if the machine has fewer than one job needs.
    """
    if len(devices) < per_job:
        what = f"gpus_per_node={per_job}: this machine has {len(devices)}"
        raise UsageError.of(
            "gpus-fewer-than-processes", what, where="keyword arguments", fix='where="slurm"'
        )
    starts = range(0, len(devices) - per_job + 1, per_job)
    return tuple(",".join(devices[start : start + per_job]) for start in starts)


def _killed(state: LocalState) -> Finding:
    return Finding(
        "agent-died",
        "the process that runs this job in the background was killed",
        where=state.queue,
        evidence=(f"the job was {state.state}",),
        fix="look for who ended it: a user, the memory limit, or a restart of the machine",
    )


def _cancelled(run_dir: RunDir, state: LocalState) -> Finding:
    when = "" if state.since_ns else " before it started"
    return Finding("stopped-by-signal", f"the job was cancelled{when}", where=str(run_dir.root))


def _no_outcome(run_dir: RunDir, state: LocalState) -> Finding:
    return Finding(
        "agent-died",
        f"the launcher ended with status {state.status}, and has recorded no outcome",
        where=str(run_dir.local_output),
        fix="job.logs() has its output",
    )


def _not_started(folder: Path) -> Finding:
    return Finding(
        "agent-died",
        "the process that runs jobs in the background has not started",
        where=str(folder / "queue.out"),
        fix=f"less {folder / 'queue.out'}",
    )
