"""Measure batch sizes, each in its own start, with the loader settings that are best."""

from __future__ import annotations

import shlex
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import Finding, RunError, option_contradicted, option_invalid
from paceline.launch.probe.loader_commands import CHANGED
from paceline.machine import gpus, processes
from paceline.measure import intervals
from paceline.measure.intervals import Interval
from paceline.measure.tune import batches
from paceline.measure.tune.answer import TuningAnswer
from paceline.measure.tune.batches import BatchAnswer, BatchSize
from paceline.measure.tune.trial_run import (
    MOST_WINDOW_S,
    MemoryIsShort,
    ScriptEnded,
    SettingFailed,
    TimeIsUp,
    TooSlow,
    TrialRun,
    TrialStart,
)
from paceline.measure.tune.tuning import TuningProgress

PLACE = "{batch}"
_WINDOW_S = 1.0


def require_place(option: str) -> None:
    """Check an option that is to hold the batch size."""
    if PLACE not in option:
        raise option_invalid(
            f"--batch-option {option!r} has no {PLACE}, where the batch size goes",
            fix=f"--batch-option '--batch-size={PLACE}'",
        )


@dataclass(frozen=True)
class BatchTuning:
    """The measurement of batch sizes of one script."""

    start: TrialStart  # what is started
    option: str  # the script's option, with ``{batch}`` for the number
    answer: TuningAnswer  # what was found out about its loader
    seconds: float  # limit of the whole measurement

    def run(self, progress: TuningProgress) -> BatchAnswer:
        """Measure larger and larger batches.

        Raises RunError if the script fails with its own batch size in the option; UsageError if the
        option does not change the batches.
        """
        deadline_s = time.monotonic() + self.seconds
        free_bytes = processes.available_bytes()
        number, end = self._first, ""
        sizes: list[BatchSize] = []
        while number:
            progress.show(f"batch {number}")
            try:
                size = self._measure(number, deadline_s, progress)
            except (MemoryIsShort, ScriptEnded, TimeIsUp, TooSlow, SettingFailed) as error:
                end = f"{number}: {self._reason(error)}"
                break
            self._require_effect(sizes, size)
            if sizes and size.samples <= sizes[-1].samples:
                end = f"{number}: the data has no more than {size.samples} samples"
                break
            sizes.append(size)
            number, end = batches.next_size(sizes, free_bytes=free_bytes)
        if not sizes:
            raise RunError(self._failed(end))
        return BatchAnswer(self.option, sizes, end)

    def _start(self, number: int) -> TrialStart:
        words = shlex.split(self.option.replace(PLACE, str(number)))
        return replace(self.start, words=(*self.start.words, *words))

    def _measure(self, number: int, deadline_s: float, progress: TuningProgress) -> BatchSize:
        """Measure one batch size."""
        free_bytes = processes.available_bytes()
        with tempfile.TemporaryDirectory(prefix="paceline-tune-") as folder:
            run = TrialRun(
                self._start(number), Path(folder), deadline_s=deadline_s, tick=progress.tick
            )
            with run:
                facts, num_ranks = run.facts()
                window = run.measure(CHANGED, self.answer.best, least_s=_WINDOW_S)
                loads = gpus.loads() if facts.on_gpu else []
        # The fullest one decides: the first rank without memory ends them all.
        used = [load.memory_used for load in loads if load.memory_used is not None]
        gpu_bytes = max(used, default=None)
        seconds = intervals.median([list(window.seconds)])
        samples = facts.batch_samples * num_ranks
        # The longest time is that of the lowest rate.
        rate = Interval(samples / seconds.value, samples / seconds.high, samples / seconds.low)
        # At the peak, and of the whole machine: other programs that came meanwhile count too.
        used_bytes = max(0, free_bytes - run.least_free)
        return BatchSize(number, facts.batch_samples, rate, used_bytes, gpu_bytes)

    def _require_effect(self, sizes: list[BatchSize], size: BatchSize) -> None:
        if len(sizes) == 1 and size.samples == sizes[0].samples:
            raise option_contradicted(
                f"--batch-option does not change the batches: {size.samples} samples a rank"
                f" with {sizes[0].option} and with {size.option}",
                fix=f"name the option of {self.answer.name} that sets its batch size",
            )

    def _reason(self, error: Exception) -> str:
        """Return why a size could not be measured."""
        if isinstance(error, TimeIsUp):
            return "the time was up"
        if isinstance(error, TooSlow):
            return f"too few batches in {MOST_WINDOW_S:.0f} s"
        if isinstance(error, MemoryIsShort):
            return "the machine had less than a tenth of its memory left"
        if isinstance(error, ScriptEnded):
            return _end_of(error)
        return str(error)

    def _failed(self, end: str) -> Finding:
        return Finding(
            "trial-failed",
            f"{self.answer.name} could not be measured with its own batch size in --batch-option",
            evidence=(end,),
            fix=shlex.join(
                ["paceline", "run", *self.start.options, *self._start(self._first).words]
            ),
        )

    @property
    def _first(self) -> int:
        """The first number that is tried."""
        return max(1, self.answer.facts.batch_samples)


def _end_of(ended: ScriptEnded) -> str:
    """Return why a script ended, such as for want of GPU memory."""
    if ended.finding is not None:
        return ended.finding.what
    if ended.status:
        return f"the script ended with {ended}"
    return "the script ended before it could be measured"
