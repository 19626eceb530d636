"""End a training run after some time, and measure how long it took."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from paceline.train.trainer.arguments import read_duration
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.options import one_of

CHECK_EVERY_S = 1.0  # a collective takes some 100 µs; an end need not be exact to the batch
STAGES = ("train", "validate", "test", "predict")


class Timer(Callback):
    """Ends a training run after a duration, and measures time.

    The duration covers all starts of the training together. Ranks agree about once a second, so
    that all of them end after the same batch.

    Args:
        duration: ``"DD:HH:MM:SS"``, a timedelta, its arguments in a dict, or None for no end.
        interval: Whether to end after the batch, ``"step"``, or after the epoch, ``"epoch"``.
        verbose: Whether to print that the time is over.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        duration: str | timedelta | dict[str, int] | None = None,
        interval: str = "step",
        verbose: bool = True,
    ) -> None:
        self._duration_s = read_duration(duration, where="Timer")
        self._interval = one_of("interval", str(interval), ("step", "epoch"), where="Timer")
        self._verbose = verbose
        self._before_s = 0.0  # of earlier starts
        self._start_s: dict[str, float | None] = dict.fromkeys(STAGES)
        self._end_s: dict[str, float] = {}
        self._num_batches, self._next_check = 0, 1

    def start_time(self, stage: str = "train") -> float | None:
        """Return when a stage began, on a monotonic clock in seconds; None if it did not."""
        return self._start_s[stage]

    def end_time(self, stage: str = "train") -> float | None:
        """Return when a stage ended, on a monotonic clock in seconds; None if it did not."""
        return self._end_s.get(stage)

    def time_elapsed(self, stage: str = "train") -> float:
        """Return the duration of a stage in seconds, with earlier starts of a training run."""
        start = self._start_s[stage]
        before = self._before_s if stage == "train" else 0.0
        if start is None:
            return before
        return self._end_s.get(stage, time.monotonic()) - start + before

    def time_remaining(self, stage: str = "train") -> float | None:
        """Return the seconds that are left; None without a duration."""
        return None if self._duration_s is None else self._duration_s - self.time_elapsed(stage)

    def state_dict(self) -> dict[str, Any]:
        """Return the time so far."""
        return {"time_elapsed": {"train": self.time_elapsed()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a time."""
        self._before_s = state_dict.get("time_elapsed", {}).get("train", 0.0)

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Begin to measure."""
        self._begin("train")
        self._num_batches, self._next_check = 0, 1

    def on_train_end(self, trainer: Any, task: Any) -> None:
        """End the measurement."""
        self._end_s["train"] = time.monotonic()

    def on_validation_start(self, trainer: Any, task: Any) -> None:
        """Begin to measure."""
        self._begin("validate")

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        """End the measurement."""
        self._end_s["validate"] = time.monotonic()

    def on_test_start(self, trainer: Any, task: Any) -> None:
        """Begin to measure."""
        self._begin("test")

    def on_test_end(self, trainer: Any, task: Any) -> None:
        """End the measurement."""
        self._end_s["test"] = time.monotonic()

    def on_predict_start(self, trainer: Any, task: Any) -> None:
        """Begin to measure."""
        self._begin("predict")

    def on_predict_end(self, trainer: Any, task: Any) -> None:
        """End the measurement."""
        self._end_s["predict"] = time.monotonic()

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the training if the time is over; a collective about once a second."""
        self._num_batches += 1
        if self._duration_s is None or self._interval != "step":
            return
        if self._num_batches >= self._next_check and self._check(trainer):
            trainer.stops_at_once = True

    def on_train_epoch_end(self, trainer: Any, task: Any) -> None:
        """End the training if the time is over."""
        if self._duration_s is not None and self._interval == "epoch":
            self._check(trainer)

    def _begin(self, stage: str) -> None:
        self._start_s[stage] = time.monotonic()
        self._end_s.pop(stage, None)

    def _check(self, trainer: Any) -> bool:
        """Return whether the time is over, by the sums of all ranks, so that all decide alike."""
        elapsed_s = self.time_elapsed()
        is_over = int(elapsed_s >= (self._duration_s or 0.0))
        this_start_s = elapsed_s - self._before_s
        num_over, total_s = trainer.session.reduce((is_over, this_start_s))
        batch_s = total_s / trainer.world_size / max(1, self._num_batches)
        self._next_check = self._num_batches + max(1, int(CHECK_EVERY_S / max(batch_s, 1e-9)))
        if num_over:
            trainer.should_stop = True
            if self._verbose:
                trainer.print(f"Time limit reached: training ends after {elapsed_s:.0f} s")
        return bool(num_over)
