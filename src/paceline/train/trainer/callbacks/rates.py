"""Log the learning rates of a training run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from paceline.errors import option_contradicted
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.options import one_of


class LearningRateMonitor(Callback):
    """Logs the learning rate of each optimizer, as ``lr-SGD`` for example.

    Several groups of an optimizer are ``lr-SGD/pg1``, ``lr-SGD/pg2``; several optimizers of a class
    are ``lr-SGD``, ``lr-SGD-1``; a scheduler's ``name`` replaces ``lr-SGD``.

    Args:
        logging_interval: ``"step"``, ``"epoch"``, or None for the interval of each scheduler.
        log_momentum: Whether to log momentum too, or Adam's first beta.
        log_weight_decay: Whether to log weight decay too.

    Raises:
        UsageError: The interval is unknown, or there is no logger to log to.

    Attributes:
        lrs: Logged learning rates by name, in lists.
    """

    def __init__(
        self,
        logging_interval: str | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
    ) -> None:
        if logging_interval is not None:
            one_of(
                "logging_interval", logging_interval, ("step", "epoch"), where="LearningRateMonitor"
            )
        self.logging_interval = logging_interval
        self.log_momentum, self.log_weight_decay = log_momentum, log_weight_decay
        self.lrs: dict[str, list[float]] = {}

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Check that the numbers go anywhere."""
        if not trainer.loggers and not trainer.fast_dev_run:
            raise option_contradicted(
                "there is no logger to log learning rates to",
                where="LearningRateMonitor",
                fix='Trainer(logger="csv"), or leave the callback out',
            )

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, batch_idx: int) -> None:
        """Log by step."""
        every = trainer.log_every_n_steps
        if every and trainer.global_step % every == 0:
            self._log(trainer, "step")

    def on_train_epoch_start(self, trainer: Any, task: Any) -> None:
        """Log by epoch."""
        self._log(trainer, "epoch")

    def _log(self, trainer: Any, interval: str) -> None:
        values: dict[str, float] = {}
        for name, optimizer, of_scheduler in _named(trainer):
            if (self.logging_interval or of_scheduler) == interval:
                values.update(self._values(name, optimizer))
        if not values:
            return
        for name, value in values.items():
            self.lrs.setdefault(name, []).append(value)
        trainer.take(values, values)
        trainer.session.log(values)

    def _values(self, name: str, optimizer: Any) -> dict[str, float]:
        groups, values = optimizer.param_groups, {}
        for number, group in enumerate(groups, 1):
            key = name if len(groups) == 1 else f"{name}/{group.get('name', f'pg{number}')}"
            values[key] = float(group["lr"])
            if self.log_momentum:
                values[f"{key}-momentum"] = float(group.get("momentum", _first_beta(group)))
            if self.log_weight_decay:
                values[f"{key}-weight_decay"] = float(group.get("weight_decay", 0))
        return values


def _first_beta(group: dict[str, Any]) -> float:
    return float(group["betas"][0]) if "betas" in group else 0.0


def _named(trainer: Any) -> list[tuple[str, torch.optim.Optimizer, str]]:
    """Return each optimizer with its name and the interval of its scheduler."""
    named, counts = [], Counter[str]()
    for optimizer in trainer.optimizers:
        configs = [
            config
            for config in trainer.lr_scheduler_configs
            if getattr(config.scheduler, "optimizer", None) is optimizer
        ]
        kind = f"lr-{type(optimizer).__name__}"
        number, counts[kind] = counts[kind], counts[kind] + 1
        default = f"{kind}-{number}" if number else kind
        name = configs[0].name if configs and configs[0].name else default
        named.append((name, optimizer, configs[0].interval if configs else "epoch"))
    return named
