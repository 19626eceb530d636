"""Watch for DataLoader workers that are deadlocked in their fork.

This module collects facts, and ``fork_deadlock`` decides. Nothing is read while ranks get their
batches. If a rank waits for a worker for seconds, the ``/proc`` entries of both are read once a
second; no signal is sent. py-spy, if installed, runs once for each worker that does not run.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable

from paceline.counters import SharedCounters
from paceline.errors import Finding, Notice
from paceline.launch.monitor import child_processes, child_stacks, fork_deadlock
from paceline.launch.monitor.attempt import WatchedRanks
from paceline.launch.monitor.fork_deadlock import NativeFrame, WorkerLook
from paceline.machine import python_fork

_EVERY_S = 1.0
_WAITS_S = 1.5  # a rank that waits for a batch for longer is looked at
_FRAMES_S = 3.0


class ForkWatch:
    """Watch the workers of the ranks of one attempt."""

    def __init__(
        self,
        group: WatchedRanks,  # the ranks of this node
        counters: SharedCounters,  # their counters
        *,
        # prints a notice; None where another node or attempt prints it
        inform: Callable[[Notice], None] | None = None,
    ) -> None:
        self._group, self._counters, self._inform = group, counters, inform
        self._next_s = 0.0
        # By local rank: the earliest look since which its worker has not run.
        self._first: dict[int, WorkerLook] = {}
        self._frames: dict[int, tuple[NativeFrame, ...]] = {}  # by process
        self._reported: set[int] = set()

    def tick(self) -> Finding | None:
        """Return the deadlock of a worker once it is proven; almost free while batches come."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + _EVERY_S
        self._warn_of_forks()
        findings = [self._look(local, now_s) for local in sorted(self._group.attempt.living)]
        return next((finding for finding in findings if finding is not None), None)

    def _warn_of_forks(self) -> None:
        if self._inform is None or not python_fork.has_bug():
            return
        for local, rank in self._group.attempt.ranks.items():
            if self._counters.read_awaited(local).forked_again:
                self._inform(fork_deadlock.warn_of_forks(rank))
                self._inform = None
                return

    def _look(self, local: int, now_s: float) -> Finding | None:
        now = self._collect(local, now_s)
        if now is None or not now.is_suspect or now.worker.pid in self._reported:
            self._first.pop(local, None)
            return None
        first = self._first.setdefault(local, now)
        if not fork_deadlock.has_not_run(first, now):
            self._first[local] = now
            return None
        frames = self._frames_of(now) if now.at_s - first.at_s >= fork_deadlock.APART_S else ()
        if not fork_deadlock.is_proven(first, now, frames):
            return None
        self._reported.add(now.worker.pid)
        return fork_deadlock.explain(now, frames)

    def _collect(self, local: int, now_s: float) -> WorkerLook | None:
        """Return a look at the worker that a rank has long waited for; None if there is none."""
        awaited = self._counters.read_awaited(local)
        waits_s = now_s - awaited.since_ns / 1e9
        pid = self._group.attempt.pids.get(local)
        if not awaited.pid or pid is None or waits_s < _WAITS_S:
            return None
        process, worker = child_processes.look(pid), child_processes.look(awaited.pid)
        if process is None or worker is None:
            return None
        rank = self._group.attempt.ranks[local]
        return WorkerLook(rank, socket.gethostname(), waits_s, process, worker, now_s)

    def _frames_of(self, now: WorkerLook) -> tuple[NativeFrame, ...]:
        pid = now.worker.pid
        if pid not in self._frames:
            self._frames[pid] = read_frames(pid)
        return self._frames[pid]


def read_frames(pid: int) -> tuple[NativeFrame, ...]:
    """Return the stack of a process as py-spy reads it, outermost first.

    It is empty without py-spy, or without the right to read.
    """
    program = child_stacks.find_py_spy()
    if not program:
        return ()
    command = [program, "dump", "--native", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        dump = subprocess.run(
            command, capture_output=True, text=True, timeout=_FRAMES_S, check=False
        )
        return fork_deadlock.parse(dump.stdout)
    return ()
