"""Run a script under ``paceline run`` and change its loader while it trains.

The script keeps its working directory, its arguments and its environment. Its run folder is a
temporary one. It is ended when everything is measured, in the middle of its training.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from paceline import env
from paceline.errors import Finding
from paceline.launch.probe.loader_commands import (
    END,
    Command,
    CommandFiles,
    Delivery,
    LoaderFacts,
    LoaderSetting,
    read_failures,
    unpack,
)
from paceline.measure import launcher_process
from paceline.measure.tune import windows
from paceline.measure.tune.windows import Window
from paceline.rundir import events, files
from paceline.rundir.files import RunDir

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
class Start:
    """What is started."""

    # the script or module and its arguments, after the options of ``paceline run``
    words: Sequence[str]
    options: Sequence[str] = ()  # options of ``paceline run``


class TrialRun:
    """A script that trains, whose loader takes commands; a context that ends it."""

    def __init__(
        self,
        start: Start,
        folder: Path,  # empty; for everything that is written
        *,
        deadline_s: float,  # on the clock of ``time.monotonic``
        tick: Callable[[], None],  # called several times a second while something is awaited
    ) -> None:
        self._start, self._folder = start, folder
        self._deadline_s, self._tick = deadline_s, tick
        self._files = CommandFiles(folder)
        self._run_dir = RunDir(folder / "run")
        self._number = 0
        self._offsets: dict[int, int] = {}
        self._child: subprocess.Popen[bytes]
        self.least_free = psutil.virtual_memory().available  # bytes that the machine had left

    def __enter__(self) -> TrialRun:
        own = ["--no-slurm", "--run-dir", str(self._run_dir.root)]
        with (self._folder / "output").open("wb") as output:
            self._child = launcher_process.start(
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
        launcher_process.end(self._child)

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
        return LoaderFacts.from_json(values), self._num_ranks()

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
            window = windows.measure(by_rank, number, num_workers=num_workers)
            is_late = time.monotonic() > limit_s
            # A script that has ended gives no longer window, and this one may have enough batches.
            is_last = is_late or has_ended
            if windows.is_enough(window, len(by_rank), least_s=least_s, is_last=is_last):
                return window
            if has_ended:
                raise ScriptEnded(self._child.returncode, self.finding())
            if is_late:
                raise TooSlow

    def _order(self, source: str, setting: LoaderSetting | None) -> int:
        """Write a command; return its number."""
        self._number += 1
        command = Command(self._number, source, setting)
        files.write_whole(self._files.command, json.dumps(command.to_json()))
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
        if time.monotonic() > self._deadline_s:
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
        return launcher_process.reason(self.finding(), output)


def shared_memory_bytes() -> int | None:
    """Return the free bytes of ``/dev/shm``; None if there is none."""
    try:
        free: Any = psutil.disk_usage("/dev/shm").free
    except OSError:
        return None
    return int(free)
