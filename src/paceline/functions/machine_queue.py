"""Start the jobs of a folder on this machine, so many at a time: what Slurm does elsewhere.

``python -m paceline.functions.machine_queue FOLDER`` returns at once and continues in the
background, in its own session: the jobs outlive the program that has submitted them, and its
terminal. When this process is killed, the kernel ends its jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline import env
from paceline.errors import EXIT_FAILED, EXIT_OK
from paceline.functions import direct
from paceline.functions.by_machine import (
    ENDED,
    PENDING,
    RUN_DIR,
    RUNNING,
    LocalQueue,
    LocalState,
    read_queue,
)
from paceline.launch.outcome import evidence
from paceline.machine import system
from paceline.machine.cpus import usable_cpus
from paceline.rundir import events, owned
from paceline.rundir.files import IN_JOB, RunDir
from paceline.slurm.jobs import requeue
from paceline.slurm.record import JobRecord, Requeue

_LOOK_S = 0.1
_NO_ID = "0"  # jobs without Slurm have no id


@dataclass
class _Task:
    """One job of the queue."""

    run_dir: RunDir  # its run folder
    state: LocalState  # its state as it is written
    # how often it was queued again, in the form that the decision takes
    record: JobRecord = field(default_factory=lambda: JobRecord(_NO_ID, script=IN_JOB))
    process: subprocess.Popen[bytes] | None = None  # its launcher; None while it waits
    is_stopping: bool = False  # whether its launcher was signalled to end
    # the GPUs that it has, as CUDA_VISIBLE_DEVICES names them; empty without a choice
    gpus: str = ""

    @property
    def is_cancelled(self) -> bool:
        """Whether the job is to end."""
        return self.run_dir.cancelled.exists()

    def become(self, state: str, **changes: object) -> None:
        """Write a new state."""
        self.state = replace(self.state, state=state, **changes)  # type: ignore[arg-type]
        self.state.write(self.run_dir)


def main(folder: Path) -> int:
    """Run all jobs of a folder in the background; return 0 once that has started."""
    queue = read_queue(RunDir(folder).local_queue)
    pid = os.fork()
    if pid:
        replace(queue, pid=pid, time_s=time.time()).write(folder)
        return EXIT_OK
    os.setsid()  # Ctrl-C in the terminal of the program that submitted does not end its jobs
    status = EXIT_FAILED
    try:
        run(queue, folder)
        status = EXIT_OK
    except BaseException:
        sys.excepthook(*sys.exc_info())  # into queue.out
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(queue: LocalQueue, folder: Path) -> None:
    """Run all jobs of a queue to their ends."""
    # Each job would take all CPUs for its threads, and those that run together slow each other.
    if env.read(env.OMP_THREADS) is None:
        env.put(env.OMP_THREADS, str(max(1, usable_cpus()[0] // queue.parallel)))
    file = str(RunDir(folder).local_queue)
    waiting = deque(_Task(RunDir(Path(job)), LocalState(file)) for job in queue.jobs)
    running: list[_Task] = []
    free = list(queue.gpus)
    while waiting or running:
        while waiting and len(running) < queue.parallel:
            task = waiting.popleft()
            if task.is_cancelled:
                task.become(ENDED, cancelled=True)
            else:
                task.gpus = free.pop(0) if free else ""
                if _try_start(task, queue):
                    running.append(task)
                elif task.gpus:
                    free.append(task.gpus)
        _end_cancelled(waiting)
        for task in [task for task in running if _has_ended(task)]:
            running.remove(task)
            free += [task.gpus] if task.gpus else []
            if _is_unfinished(task):
                waiting.append(task)
        time.sleep(_LOOK_S)


def _try_start(task: _Task, queue: LocalQueue) -> bool:
    """Start a task and return True; one that cannot be started fails alone: return False."""
    try:
        _start(task, queue)
    except OSError as error:
        reason = f"the job cannot be started: {type(error).__name__}: {error}\n"
        with contextlib.suppress(OSError), owned.append(task.run_dir.local_output) as output:
            output.write(reason.encode())
        sys.stderr.write(f"{task.run_dir.root}: {reason}")  # into queue.out
        task.become(ENDED, status=EXIT_FAILED)
        return False
    return True


def _start(task: _Task, queue: LocalQueue) -> None:
    task.become(RUNNING, since_ns=time.time_ns())
    run_dir = str(task.run_dir.root)
    words = [run_dir if word == RUN_DIR else word for word in queue.command]
    environ = env.snapshot()
    if task.gpus:
        environ[env.CUDA_DEVICES] = task.gpus
    with owned.append(task.run_dir.local_output) as output:
        task.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environ,
            # safe, since this process has one thread
            preexec_fn=lambda: system.die_with_parent(signal.SIGTERM),  # noqa: PLW1509
        )


def _end_cancelled(waiting: deque[_Task]) -> None:
    for task in [task for task in waiting if task.is_cancelled]:
        waiting.remove(task)
        task.become(ENDED, cancelled=True)


def _has_ended(task: _Task) -> bool:
    assert task.process is not None
    if task.process.poll() is not None:
        return True
    if task.is_cancelled and not task.is_stopping:
        task.is_stopping = True
        task.process.terminate()
    return False


def _is_unfinished(task: _Task) -> bool:
    """Write how a job has ended; return whether it is queued again."""
    assert task.process is not None
    code = task.process.returncode
    status = code if code >= 0 else 128 - code  # as shells have it
    if status != EXIT_OK:
        direct.conclude(task.run_dir.root, status=status)
    if not task.is_stopping and status != EXIT_OK:
        last = evidence.last_checkpoint(task.run_dir.checkpoints)
        decision = requeue.decide(
            status,
            job=task.record,
            history=events.read_history(task.run_dir.root, since_ns=task.state.since_ns),
            last_step=last.step if last else None,
            nodelist="",
        )
        if decision.why:
            entry = Requeue(decision.step, time.time_ns(), decision.why, decision.elsewhere)
            task.record = replace(task.record, requeues=(*task.record.requeues, entry))
            task.become(PENDING)
            return True
    task.become(ENDED, status=status, cancelled=task.is_stopping)
    return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
