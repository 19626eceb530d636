"""Keep the speed of a running attempt in the run folder: what ``paceline top`` and ``report`` show.

Every few seconds a node describes its ranks. Node 0 puts the descriptions of all nodes together and
writes them: ``speed.json`` has the latest, with every rank, and ``speed.jsonl`` has a line for
each, without ranks. A thread does all of it: a file system or a driver may not answer, the account
of 4,096 ranks takes a second, and the loop that watches the ranks must not wait.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import queue
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from paceline.counters import SharedCounters
from paceline.errors import Finding
from paceline.launch.channel.control_channel import ControlChannel
from paceline.launch.monitor import bottleneck, rare_delays, stage_times, timed_steps
from paceline.launch.monitor.attempt import WatchedRanks
from paceline.launch.monitor.memory_growth import MemoryHistory
from paceline.launch.monitor.timed_steps import Durations, TimedSteps
from paceline.machine import gpus, processes
from paceline.rundir import files, owned
from paceline.rundir.files import RunDir

_EVERY_S = 5.0
# A run of hours needs no line every five seconds: after so many lines the interval doubles.
_LINES = 360
_CLOSING_S = 0.5
_LEAST_RATE_S = 2.0  # the last description may come soon after the one before
_LATEST_STEPS = 64  # timed steps that are described; of several nodes those that all have sent
# Seconds without a description for each CPU second that the last one took: the loop shares the
# interpreter with the thread.
_REST = 20

_Steps = Mapping[int, Mapping[int, Durations]]


class SpeedLog:
    """Describes the ranks of one attempt of this node, and at node 0 those of all nodes."""

    def __init__(
        self,
        group: WatchedRanks,  # the ranks of this node
        counters: SharedCounters,  # their counters
        timed: TimedSteps,  # their timed steps
        channel: ControlChannel | None,  # channel to the other nodes, None if there are none
        *,
        run_dir: RunDir,  # the run folder
        with_gpus: bool,  # whether the ranks use GPUs
        # called at node 0, from ``tick``, with what the descriptions show
        notice: Callable[[Finding], None],
    ) -> None:
        self._group, self._counters, self._timed = group, counters, timed
        self._channel, self._run_dir, self._notice = channel, run_dir, notice
        self._every_s = _EVERY_S if channel is None else max(_EVERY_S, channel.num_nodes / 40)
        self._next_s = time.monotonic() + self._every_s
        self._lines = 0
        self._before = (0, 0.0)  # steps of the last description, and their time
        self._last_step = (0, 0.0)  # number of the last step, and when it was seen first
        self._steps_per_s = 0.0
        self._is_closing = False
        self._with_gpus = with_gpus
        self._gpus: list[dict[str, Any]] = []
        # By local rank:
        self._memory: defaultdict[int, MemoryHistory] = defaultdict(MemoryHistory)
        self._gpu_memory: defaultdict[int, MemoryHistory] = defaultdict(MemoryHistory)
        # By local rank, how long it had waited for a CPU and when: after the first step, and since.
        self._cpu_first: dict[int, tuple[float, float]] = {}
        self._cpu_wait: dict[int, tuple[float, float]] = {}
        self._finding: Finding | None = None  # what the thread has found, until it is said
        self._said: set[str] = set()  # names of findings
        # The timed steps to describe; None ends the thread.
        self._work: queue.SimpleQueue[_Steps | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def tick(self, *, at_once: bool = False) -> None:
        """Let the thread describe the ranks if that is due or ``at_once`` is True; almost free."""
        now_s = time.monotonic()
        if now_s < self._next_s and not at_once:
            return
        if self._finding is not None:
            self._notice(self._finding)
            self._finding = None
        self._next_s = now_s + self._every_s
        self._put(self._timed.latest(_LATEST_STEPS))

    def close(self) -> None:
        """Write the last description, and wait for that a moment."""
        self._is_closing = True
        self.tick(at_once=True)
        self.end()
        if self._thread is not None:
            self._thread.join(_CLOSING_S)

    def end(self) -> None:
        """End the thread, once it has written what it has."""
        self._work.put(None)

    def _describe(self, latest: _Steps) -> dict[str, Any]:
        """Return what this node knows of its ranks, as plain data."""
        host = socket.gethostname()
        ranks = []
        for local, rank in self._group.attempt.ranks.items():
            count = self._counters.read(local)
            samples, tokens = self._counters.read_batch(local)
            pid = self._group.attempt.pids.get(local)
            allocated, gpu_bytes = self._counters.read_gpu_memory(local)
            gpu_free = partial(max, gpu_bytes - allocated, 0)
            memory, gpu_memory = self._memory[local], self._gpu_memory[local]
            memory.add(count.steps, processes.own_bytes(pid) if pid is not None else 0)
            cpu_wait_s, watched_s = self._waited(local, pid, count.steps)
            gpu_memory.add(count.steps, allocated)
            ranks.append(
                {
                    "rank": rank,
                    "host": host,
                    "steps": count.steps,
                    "batches": count.batches,
                    "seconds": count.seconds,
                    "data_s": count.data_s,
                    "own_s": count.own_s,
                    "cpu_wait_s": cpu_wait_s,
                    "watched_s": watched_s,
                    "loops": count.loops,
                    "open_batches": count.open_batches,
                    "loop_length": count.loop_length,
                    "loss": self._counters.read_loss(local),
                    "samples": samples,
                    "tokens": tokens,
                    "memory_bytes": memory.latest_bytes,
                    "memory_growth": memory.growth(count, processes.available_bytes),
                    "gpu_memory_bytes": gpu_memory.latest_bytes,
                    "gpu_memory_growth": gpu_memory.growth(count, gpu_free),
                }
            )
        timed = json.dumps(timed_steps.to_json(latest))
        return {"ranks": ranks, "gpus": self._gpus, "timed": timed}

    def _waited(self, local: int, pid: int | None, num_steps: int) -> tuple[float, float]:
        """Return how long a rank has waited for a CPU after its first step, and in what time."""
        wait_s, now_s = processes.cpu_wait_s(pid) if pid else 0.0, time.monotonic()
        if wait_s and num_steps:  # 0 after the end of the process: the last value stays
            first_wait_s, first_s = self._cpu_first.setdefault(local, (wait_s, now_s))
            self._cpu_wait[local] = wait_s - first_wait_s, now_s - first_s
        return self._cpu_wait.get(local, (0.0, 0.0))

    def _join(self, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the description of all nodes together."""
        ranks = sorted((rank for node in nodes for rank in node["ranks"]), key=lambda r: r["rank"])
        timed = [timed_steps.from_json(json.loads(node["timed"])) for node in nodes]
        steps = timed_steps.join(timed)
        most = timed_steps.most_sent(self._group.attempt.world_size)
        latest = {step: steps[step] for step in list(steps)[-most:]}
        hosts = {rank["rank"]: rank["host"] for rank in ranks}
        first = ranks[0]
        mean_s = first["seconds"] / (first["steps"] - 1) if first["steps"] > 1 else 0.0
        return {
            "version": files.SPEED_VERSION,
            "time_s": round(time.time(), 2),
            "attempt": self._group.attempt.number,
            "steps": first["steps"],
            "steps_per_s": self._rate(first["steps"], first["seconds"]),
            "loss": first["loss"],
            "samples_per_batch": sum(rank["samples"] for rank in ranks),
            "tokens_per_batch": sum(rank["tokens"] for rank in ranks),
            "memory_bytes": max(rank["memory_bytes"] for rank in ranks),
            "gpu_memory_bytes": max(rank["gpu_memory_bytes"] for rank in ranks),
            "batches_per_step": first["batches"] / first["steps"] if first["steps"] else 0.0,
            "step": rare_delays.describe(
                stage_times.account(latest.values()),
                rare_delays.find(latest),
                hosts,
                mean_s=mean_s,
            ),
            "ranks": ranks,
            "gpus": [gpu for node in nodes for gpu in node["gpus"]],
        }

    def _rate(self, steps: int, seconds: float) -> float:
        """Return steps per second: since the last description, at the end of the whole attempt.

        They are counted from step to step, so neither the start nor the end of the ranks is in it.
        """
        steps_before, seconds_before = self._before
        if self._is_closing or steps_before < 1:
            self._steps_per_s = (steps - 1) / seconds if seconds > 0 else 0.0
            self._before = steps, seconds
        elif seconds - seconds_before >= _LEAST_RATE_S:
            self._steps_per_s = (steps - steps_before) / (seconds - seconds_before)
            self._before = steps, seconds
        return self._steps_per_s if self._is_closing else min(self._steps_per_s, self._most(steps))

    def _most(self, steps: int) -> float:
        """Return the greatest rate at which the next step may not have come yet."""
        now_s = time.monotonic()
        if steps != self._last_step[0]:
            self._last_step = steps, now_s
        waiting_s = now_s - self._last_step[1]
        return 1 / waiting_s if waiting_s > 0 else math.inf

    def _put(self, latest: _Steps) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._share_all, name="paceline-speed-log", daemon=True
            )
            self._thread.start()
        if self._work.empty():  # else the file system does not answer: the next one replaces it
            self._work.put(latest)

    def _share_all(self) -> None:
        """Send and write descriptions until there are no more; runs in a thread."""
        while (latest := self._work.get()) is not None:
            began_s = time.thread_time()
            with _without_collections():
                self._share(latest)
            rest_s = _REST * (time.thread_time() - began_s)
            self._next_s = max(self._next_s, time.monotonic() + rest_s)
            if self._with_gpus:
                host = socket.gethostname()
                self._gpus = [{"host": host, **asdict(load)} for load in gpus.loads()]

    def _share(self, latest: _Steps) -> None:
        """Send what this node knows; at node 0, write what all nodes know."""
        nodes = {0: self._describe(latest)}
        if self._channel is not None:
            self._channel.tell("speed", nodes[0])
            nodes = {} if self._channel.node else self._channel.hear("speed")
        if nodes:
            speed = self._join(list(nodes.values()))
            self._write(speed)
            hints = bottleneck.hints_of_ranks(speed["ranks"])
            unsaid = [hint for hint in hints if hint.name not in self._said]
            if unsaid and self._finding is None:
                self._finding = unsaid[0]
                self._said.add(unsaid[0].name)

    def _write(self, speed: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            owned.write_whole(self._run_dir.speed, json.dumps(speed) + "\n")
        self._lines += 1
        if self._lines % (1 << (self._lines // _LINES).bit_length()):
            return
        line = {key: value for key, value in speed.items() if key not in ("ranks", "gpus")}
        with contextlib.suppress(OSError), owned.append(self._run_dir.speed_log) as file:
            file.write(json.dumps(line).encode() + b"\n")


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Keep Python's garbage collector from running: it would stop all threads.

    What thousands of ranks describe are some million objects, none of them in a cycle. With them
    alive, a collection took 0.14 s for 4,096 ranks.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
