"""Run a script under ``paceline run`` and change its loader while it trains.

The script keeps its working directory, its arguments and its environment. Its run folder is a
temporary one. It is ended when everything is measured, in the middle of its training.

Workers deliver in bursts: with four of them, four batches come at about the same time, and then
none for as long as a batch takes to read. A single wait therefore says nothing. What is compared is
the time of a whole round of all workers, divided by its batches.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from paceline import env
from paceline.errors import Finding
from paceline.launch.probe.loader_commands import (
    END,
    CommandFiles,
    Delivery,
    LoaderCommand,
    LoaderFacts,
    LoaderSetting,
    read_failures,
    unpack,
)
from paceline.machine import processes
from paceline.machine.cpus import usable_cpus
from paceline.measure import trial
from paceline.rundir import events, files, owned
from paceline.rundir.files import RunDir
from paceline.text.plain_data import read_as

# Rounds that a window is summed up to: more would slow down the bootstrap and not narrow it.
_MOST_VALUES = 16
# A window is complete with so many rounds of each rank, if it is long enough.
_LEAST_ROUNDS, _LAST_ROUNDS = 5, 2
# Caches, queues and the threads of a rank need a moment to settle after a change.
_SETTLE_NS = 150_000_000


@dataclass(frozen=True)
class Window:
    """What ranks did while they followed one command."""

    # seconds per batch, a value for each round of the workers and each rank
    seconds: Sequence[float]
    # time from the first batch that counts to the last, of the rank that has seen the least; 0 or
    # less if there is none
    length_s: float
    start_s: float  # time from the command to the first batch: workers start in it. The longest.
    busy: float = 1.0  # share of the usable CPUs that the script's processes used


def measure(by_rank: Mapping[int, Iterable[Delivery]], number: int, *, num_workers: int) -> Window:
    """Return what ranks did while they followed a command."""
    values: list[float] = []
    lengths, starts = [], [0.0]
    for deliveries in by_rank.values():
        own = [delivery for delivery in deliveries if delivery.number == number]
        times = [delivery.delivered_ns for delivery in own]
        values += rounds(times, num_workers)
        lengths.append((times[-1] - times[0] - _SETTLE_NS) * 1e-9 if times else 0.0)
        starts += [(own[0].delivered_ns - own[0].requested_ns) * 1e-9] if own else []
    return Window(values, min(lengths, default=0.0), max(starts))


def rounds(times_ns: Sequence[int], num_workers: int) -> list[float]:
    """Return the seconds per batch of each round, from the times when batches came.

    The first batches are left out: while the loop waits for the first one, the other workers read
    theirs, so up to ``num_workers`` more batches are there sooner than they will be later. So are
    all batches of the first moment. 0 workers: the training process reads them.
    """
    begin_ns = times_ns[0] + _SETTLE_NS if times_ns else 0
    settled = [time for time in times_ns[1 + num_workers :] if time >= begin_ns]
    per_round = max(1, num_workers)
    num_rounds = (len(settled) - 1) // per_round
    step = per_round * max(1, -(-num_rounds // _MOST_VALUES))
    return [
        (settled[end] - settled[end - step]) / step * 1e-9
        for end in range(step, len(settled), step)
    ]


def is_enough(window: Window, num_ranks: int, *, least_s: float, is_last: bool) -> bool:
    """Return whether a window is long enough: ``least_s`` if rounds are short.

    Fewer rounds are enough if ``is_last``: the window cannot become longer.
    """
    least = _LAST_ROUNDS if is_last else _LEAST_ROUNDS
    has_rounds = len(window.seconds) >= least * num_ranks
    return has_rounds and (is_last or window.length_s >= least_s)


MOST_WINDOW_S = 8.0
_LOOK_S = 0.05
_LEAVE_S = 5.0  # for the ranks to end at their next batch
_MOST_FILE_BYTES = 1 << 20
# Memory that must be left on the machine: below it, the kernel may end any process.
LEAST_FREE_SHARE = 0.1


class ScriptEnded(Exception):
    """The script ended before a measurement was complete."""

    def __init__(self, status: int, finding: Finding | None) -> None:
        super().__init__(f"exit status {status}")
        self.status, self.finding = status, finding


class TimeIsUp(Exception):
    """The deadline passed before a measurement was complete."""


class TooSlow(Exception):
    """A setting delivers too few batches to be measured."""


class MemoryIsShort(Exception):
    """The script was ended because the machine had little memory left."""


class SettingFailed(Exception):
    """A setting does not work with this script."""


@dataclass(frozen=True)
class TrialStart:
    """What is started."""

    # the script or module and its arguments, after the options of ``paceline run``
    words: Sequence[str]
    options: Sequence[str] = ()  # options of ``paceline run``


class TrialRun:
    """A script that trains, whose loader takes commands; a context that ends it."""

    def __init__(
        self,
        start: TrialStart,
        folder: Path,  # empty; for everything that is written
        *,
        deadline_s: float,  # on the clock of ``time.monotonic``
        tick: Callable[[], None],  # called several times a second while something is awaited
    ) -> None:
        self._start, self._folder = start, folder
        self.deadline_s, self._tick = deadline_s, tick
        self._files = CommandFiles(folder)
        self._run_dir = RunDir(folder / "run")
        self._number = 0
        self._offsets: dict[int, int] = {}
        self._child: subprocess.Popen[bytes]
        self.least_free = processes.available_bytes()  # bytes that the machine had left

    def __enter__(self) -> TrialRun:
        own = ["--no-slurm", "--run-dir", str(self._run_dir.root)]
        with owned.append(self._folder / "output") as output:
            self._child = trial.start(
                ["run", *own, *self._start.options, *self._start.words],
                environ={**env.snapshot(), env.NO_PROBE: "0", env.TUNE: str(self._folder)},
                output=output,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._order(END, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_LEAVE_S)
            return
        trial.end(self._child)

    def facts(self) -> tuple[LoaderFacts, int]:
        """Wait until all ranks train; return what rank 0 sees of its loader, and the ranks here.

        Raises ScriptEnded if the script ended before that; TimeIsUp if the deadline passed.
        """
        while not self._are_ready():
            self._pause()
            status = self._child.poll()
            if status is not None and not self._are_ready():
                raise ScriptEnded(status, self.finding())
        values = files.read_json(self._files.facts(0), most_bytes=_MOST_FILE_BYTES)
        return read_as(LoaderFacts, values), self._num_ranks()

    def _are_ready(self) -> bool:
        count = self._num_ranks()
        return count > 0 and all(self._files.facts(rank).exists() for rank in range(count))

    def _num_ranks(self) -> int:
        """Return the ranks of this node; 0 before they are known."""
        try:
            plan = files.read_json(self._run_dir.plan(), most_bytes=_MOST_FILE_BYTES)
        except (OSError, ValueError):
            return 0
        return int(plan["nproc"]["value"])

    def measure(self, source: str, setting: LoaderSetting, *, least_s: float) -> Window:
        """Let the training loop read in one way, ``CACHED`` or ``CHANGED``, for a while.

        It takes longer than ``least_s``, up to ``MOST_WINDOW_S``, where batches are slow.
        ``CACHED`` has the settings of the script. Raises ScriptEnded, TimeIsUp, TooSlow if
        ``MOST_WINDOW_S`` passed with too few batches, SettingFailed if the loader does not work
        with these settings, and MemoryIsShort if the machine has little memory left.
        """
        num_workers = setting.num_workers
        began_s, before = time.monotonic(), self._cpu_seconds()
        number = self._order(source, setting)
        by_rank: dict[int, list[Delivery]] = {rank: [] for rank in range(self._num_ranks())}
        limit_s = time.monotonic() + MOST_WINDOW_S
        while True:
            has_ended = self._child.poll() is not None
            if not has_ended:
                self._pause()
            self._require_working(number)
            for rank in by_rank:
                by_rank[rank] += self._new_deliveries(rank, number)
            window = measure(by_rank, number, num_workers=num_workers)
            is_late = time.monotonic() > limit_s
            # A script that has ended gives no longer window, and this one may have enough batches.
            is_last = is_late or has_ended
            if is_enough(window, len(by_rank), least_s=least_s, is_last=is_last):
                now = self._cpu_seconds()
                used_s = sum(seconds - before.get(pid, 0.0) for pid, seconds in now.items())
                cpus, _ = usable_cpus()
                return replace(window, busy=used_s / cpus / (time.monotonic() - began_s))
            if has_ended:
                raise ScriptEnded(self._child.returncode, self.finding())
            if is_late:
                raise TooSlow

    def _cpu_seconds(self) -> dict[int, float]:
        """Return the CPU seconds of each process of the script, by process id."""
        seconds = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._child.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    seconds[process.pid] = times.user + times.system
        return seconds

    def _order(self, source: str, setting: LoaderSetting | None) -> int:
        """Write a command; return its number."""
        self._number += 1
        command = LoaderCommand(self._number, source, setting)
        owned.write_whole(self._files.command, json.dumps(asdict(command)))
        return self._number

    def _new_deliveries(self, rank: int, number: int) -> list[Delivery]:
        """Return the batches of a rank since the last call, under one command."""
        offset = self._offsets.get(rank, 0)
        with self._files.deliveries(rank).open("rb") as file:
            file.seek(offset)
            deliveries = list(unpack(file.read()))
        self._offsets[rank] = offset + len(deliveries) * len(Delivery(0, 0, 0).pack())
        return [delivery for delivery in deliveries if delivery.number == number]

    def _require_working(self, number: int) -> None:
        for path in self._folder.glob("failures-*.jsonl"):
            failures = read_failures(path.read_text().splitlines(keepends=True))
            if number in failures:
                raise SettingFailed(failures[number])

    def _pause(self) -> None:
        """Wait a moment.

        Raises TimeIsUp if the deadline has passed; MemoryIsShort if the machine has little memory
        left.
        """
        self._tick()
        if time.monotonic() > self.deadline_s:
            raise TimeIsUp
        memory = psutil.virtual_memory()
        self.least_free = min(self.least_free, memory.available)
        if memory.available < LEAST_FREE_SHARE * memory.total:
            raise MemoryIsShort
        time.sleep(_LOOK_S)

    def finding(self) -> Finding | None:
        """Return what the launcher found when the script failed; None if it found nothing."""
        outcome = events.read_history(self._run_dir.root).outcome
        return outcome.findings[0] if outcome is not None and outcome.findings else None

    def evidence(self) -> tuple[str, ...]:
        """Return why the script failed: its finding, or the end of what it printed."""
        output = (self._folder / "output").read_text(errors="replace")
        return trial.reason(self.finding(), output)


def shared_memory_bytes() -> int | None:
    """Return the free bytes of ``/dev/shm``; None if there is none."""
    try:
        free: Any = psutil.disk_usage("/dev/shm").free
    except OSError:
        return None
    return int(free)
