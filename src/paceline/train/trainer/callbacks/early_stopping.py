"""Stop a training run when a metric no longer improves, diverges, or is good enough."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from paceline.train.trainer.callback import Callback
from paceline.train.trainer.optimizers import never_logged
from paceline.train.trainer.options import count, one_of


class StopVerdict(NamedTuple):
    """What a value of the metric means."""

    stops: bool  # whether training stops
    improves: bool  # whether it is the best value so far
    reason: str = ""  # one sentence; empty if there is nothing to say


class EarlyStopping(Callback):
    """Stops a training run by a metric.

    The metric's exact mean is the same on all ranks, so all of them stop after the same epoch.

    Args:
        monitor: Name of the metric.
        min_delta: Least improvement that counts.
        patience: Checks without improvement after which to stop.
        verbose: Whether to print why it stops, and each improvement.
        mode: ``"min"`` if smaller values are better, ``"max"`` if greater ones are.
        strict: Whether it is an error that the metric was not logged.
        check_finite: Whether to stop if the metric is NaN or infinite.
        stopping_threshold: Stop when the metric is better than this.
        divergence_threshold: Stop when the metric is worse than this.
        check_on_train_epoch_end: Whether to check after the epoch rather than after each
            validation. None means after the epoch if there is one validation in each.
        log_rank_zero_only: Accepted; only rank 0 prints.

    Raises:
        UsageError: An argument is invalid.

    Attributes:
        best_score: Best value so far, a tensor.
        wait_count: Checks since.
        stopped_epoch: Epoch after which it stopped the training; 0 if it did not.
        stopping_reason_message: Why it did; None if it did not.
    """

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        self.monitor, self.verbose, self.strict = monitor, verbose, strict
        self.min_delta = abs(min_delta)
        self.patience = count("patience", patience, least=0, where="EarlyStopping")
        self.mode = one_of("mode", mode, ("min", "max"), where="EarlyStopping")
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self.best_score = torch.tensor(math.inf if mode == "min" else -math.inf)
        self.wait_count = self.stopped_epoch = 0
        self.stopping_reason_message: str | None = None

    @property
    def state_key(self) -> str:
        """Name of its state in a checkpoint."""
        return f"{type(self).__qualname__}{{'monitor': {self.monitor!r}, 'mode': {self.mode!r}}}"

    def state_dict(self) -> dict[str, Any]:
        """Return the best value and the count."""
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": float(self.best_score),
            "stopping_reason_message": self.stopping_reason_message,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = torch.as_tensor(state_dict["best_score"])
        self.stopping_reason_message = state_dict["stopping_reason_message"]

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Decide when to check."""
        if self._check_on_train_epoch_end is None:
            is_once = trainer.val_check_interval in (None, 1.0)
            self._check_on_train_epoch_end = is_once and trainer.check_val_every_n_epoch == 1

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        """Check, unless it checks after the epoch."""
        if not self._check_on_train_epoch_end:
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Any, task: Any) -> None:
        """Check after the epoch."""
        if self._check_on_train_epoch_end:
            self._check(trainer)

    def _check(self, trainer: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or trainer.fast_dev_run:
            return
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            if self.strict:
                where = f"EarlyStopping(monitor={self.monitor!r})"
                raise never_logged(self.monitor, trainer.callback_metrics, where=where)
            return
        verdict = self.judge(float(value))
        if verdict.improves:
            self.best_score, self.wait_count = value.detach().clone(), 0
        if verdict.stops:
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            self.stopping_reason_message = verdict.reason
        if verdict.reason and self.verbose:
            trainer.print(verdict.reason)

    def judge(self, value: float) -> StopVerdict:
        """Return what a value of the metric means, and count it if it does not improve."""
        best, name = float(self.best_score), self.monitor
        if self.check_finite and not math.isfinite(value):
            return StopVerdict(
                True, False, f"{name} = {value} is not finite; the best was {best:.4g}"
            )
        if self.stopping_threshold is not None and self._is_better(value, self.stopping_threshold):
            return StopVerdict(
                True, False, f"{name} = {value:.4g} has passed {self.stopping_threshold}"
            )
        worst = self.divergence_threshold
        if worst is not None and self._is_better(worst, value):
            return StopVerdict(True, False, f"{name} = {value:.4g} is worse than {worst}")
        gain = best - value if self.mode == "min" else value - best
        if gain > self.min_delta:
            return StopVerdict(False, True, f"{name} improved to {value:.4g}")
        self.wait_count += 1
        if self.wait_count < self.patience:
            return StopVerdict(False, False)
        reason = f"{name} did not improve on {best:.4g} in {self.wait_count} checks"
        return StopVerdict(True, False, reason)

    def _is_better(self, value: float, other: float) -> bool:
        return value < other if self.mode == "min" else value > other
