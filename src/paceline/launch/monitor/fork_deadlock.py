"""Distinguish a DataLoader worker that is deadlocked in its fork from a slow one. Pure.

A fork copies one thread of a process and all its locks. A lock that another thread held at that
moment is never released in the child. What proves it, without touching the worker: the rank waits
for a batch of this very worker; the worker is a fork of the rank that has not run a program and
still has the rank's name, though torch names a worker first thing in its loop; it has one thread,
so nobody inside can release anything; it waits for a lock; and it has not run at all from one look
to the next. A worker that is named may wait for a lock of the dataset that another worker holds: it
is only accused where its frames show that it has not reached the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline import deadlines
from paceline.errors import Finding, Notice
from paceline.launch.monitor.child_processes import ChildProcess
from paceline.machine import python_fork

# Least time between the first look at a worker and the look that proves the deadlock.
APART_S = 2.0
# What starts a process by fork; multiprocessing/synchronize.py waits for a lock of the user's.
_STARTERS = tuple(f"multiprocessing/{name}.py" for name in ("popen_fork", "process", "util"))
_C_LIBRARY = re.compile(r"^(?:libc|libpthread|ld-linux|ld)[-.]")


@dataclass(frozen=True)
class WorkerLook:
    """One look at the worker that a rank waits for."""

    rank: int  # global rank
    host: str  # its host
    waits_s: float  # how long the rank has waited for the worker's batch
    process: ChildProcess  # the rank's process
    worker: ChildProcess  # the worker's process
    at_s: float  # time of the look, on the monotonic clock

    @property
    def is_suspect(self) -> bool:
        """Whether the worker is a fork of the rank with one thread that waits for a lock."""
        is_child = self.worker.parent == self.process.pid
        is_fork = is_child and self.worker.command == self.process.command
        return is_fork and self.worker.threads == 1 and self.worker.in_futex

    @property
    def is_unnamed(self) -> bool:
        """Whether the worker still has the rank's name: it has not reached torch's worker loop."""
        return self.worker.name == self.process.name and not self.worker.is_named_worker


@dataclass(frozen=True)
class NativeFrame:
    """One frame of a stack that py-spy has read, of Python or of a library."""

    function: str
    file: str

    @property
    def is_python(self) -> bool:
        """Whether it is a frame of Python code."""
        return self.file.endswith(".py")


def has_not_run(first: WorkerLook, now: WorkerLook) -> bool:
    """Return whether a suspect is the same process in two looks, and has not run between them."""
    same = first.worker.pid == now.worker.pid and first.rank == now.rank
    same_switches = first.worker.switches == now.worker.switches >= 0  # -1: that is not known
    idle = same_switches and first.worker.cpu_s == now.worker.cpu_s
    return same and idle and first.is_suspect and now.is_suspect


def is_proven(
    first: WorkerLook,  # the earliest look at it since which it has not run
    now: WorkerLook,  # the last look
    frames: Sequence[NativeFrame] = (),  # its stack, outermost first; empty if it cannot be seen
) -> bool:
    """Return whether it is proven that the worker is deadlocked in its fork."""
    has_waited = min(now.waits_s, now.worker.age_s) >= deadlines.WORKER_FORK
    are_apart = now.at_s - first.at_s >= APART_S
    if not has_waited or not are_apart or not has_not_run(first, now):
        return False
    return now.is_unnamed or is_before_dataset(frames)


def is_before_dataset(
    frames: Sequence[NativeFrame],  # its stack, outermost first
) -> bool:
    """Return whether a worker has called nothing from torch's worker loop yet, or has not come to
    it since its process was started.

    Code that the loop has called, a dataset or the user's ``worker_init_fn``, may wait for a
    ``multiprocessing.Lock`` that another worker holds and will release.
    """
    python = [frame for frame in frames if frame.is_python]
    if not python:
        return False
    innermost = python[-1]
    if any(map(_is_worker_loop, python)):
        return _is_worker_loop(innermost)
    return innermost.file.endswith(_STARTERS)


def _is_worker_loop(frame: NativeFrame) -> bool:
    return frame.function == "_worker_loop" and frame.file.endswith("_utils/worker.py")


def parse(
    # what ``py-spy dump --native`` prints: one ``    function (file:line)`` for each frame,
    # innermost first
    dump: str,
) -> tuple[NativeFrame, ...]:
    """Return the frames of a py-spy dump of a process with one thread, outermost first."""
    lines = re.findall(r"^ {4}(\S.*?) \(([^()]+?)(?::\d+)?\)$", dump, re.M)
    return tuple(NativeFrame(function, file) for function, file in reversed(lines))


def explain(
    now: WorkerLook,  # the last look at it
    frames: Sequence[NativeFrame] = (),  # its stack, outermost first; empty if it cannot be seen
) -> Finding:
    """Name the deadlock of a worker for which it is proven."""
    worker, host = now.worker, f" ({now.host})" if now.host else ""
    reached = (
        "in torch's worker loop, before the dataset"
        if worker.is_named_worker
        else "before torch's worker loop"
    )
    shape = f"process {worker.pid} {worker.doing()}; it has one thread, and is {reached}"
    library = _library(frames)
    return Finding(
        "worker-fork-deadlock",
        f"rank {now.rank}{host} waits for a DataLoader worker that is deadlocked in its fork",
        where=f"rank {now.rank} on {now.host}, worker process {worker.pid}",
        evidence=(shape, _cause(library)),
        why=(
            "another thread of the rank held a lock at the fork, and the worker has no thread that"
            " could release it"
        ),
        fix=_fix(library),
    )


def _cause(library: str) -> str:
    if _is_pythons_bug(library):
        likely = "" if library else "likely: "
        return (
            f"{likely}{python_fork.this()} has a bug that does this in one of some 1000 forks:"
            f" {python_fork.ISSUE}"
        )
    if library:
        return f"the lock belongs to {library}, whose frames are the innermost (py-spy)"
    return "which lock it is: py-spy dump --native --pid PID, or gdb -p PID, while it hangs"


def _fix(library: str) -> str:
    ways = (
        'DataLoader(..., persistent_workers=True) forks once; multiprocessing_context="forkserver"'
        " never"
    )
    return f"Python {python_fork.newer()}; until then: {ways}" if _is_pythons_bug(library) else ways


def _is_pythons_bug(library: str) -> bool:
    """Return whether CPython's bug explains the deadlock.

    The lock is Python's own, or its owner is not visible.
    """
    return python_fork.has_bug() and (not library or library.startswith(("libpython", "python")))


def _library(frames: Sequence[NativeFrame]) -> str:
    """Return the file of the innermost native frame outside the C library; empty without one."""
    native = [frame for frame in frames if not frame.is_python]
    return next((frame.file for frame in reversed(native) if not _C_LIBRARY.match(frame.file)), "")


def warn_of_forks(
    rank: int,  # one whose loader has forked its workers a second time
) -> Notice:
    """Return the notice that this Python may deadlock in a fork, if loops fork their workers."""
    return Notice(
        f"{python_fork.this()} can deadlock in a fork ({python_fork.ISSUE}), and rank {rank} forks"
        " its DataLoader workers again for every loop",
        details=(
            (
                "about one fork in 1000 hangs where a rank has other threads; paceline names it"
                " when it happens"
            ),
        ),
        advice=f"DataLoader(..., persistent_workers=True), or Python {python_fork.newer()}",
    )
