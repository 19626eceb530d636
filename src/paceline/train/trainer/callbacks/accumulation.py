"""Accumulate another number of batches in a step from given epochs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import option_contradicted
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.options import count, invalid

WHERE = "GradientAccumulationScheduler"


class GradientAccumulationScheduler(Callback):
    """Sets the number of batches in a step at the start of an epoch.

        GradientAccumulationScheduler({0: 8, 4: 4, 8: 1})

    Args:
        scheduling: For each epoch, from 0, in which the number changes, how many batches make a
            step from then on; 1 before the first of them.

    Raises:
        UsageError: There is no entry, or an epoch or a number of batches is invalid.
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        if not isinstance(scheduling, Mapping) or not scheduling:
            raise invalid(
                "scheduling",
                scheduling,
                "a dict of batches in a step by epoch",
                where=WHERE,
                fix=f"{WHERE}({{4: 2}}): two batches make a step from epoch 4 on",
            )
        for epoch, batches in scheduling.items():
            count("an epoch of scheduling", epoch, least=0, where=WHERE)
            count(f"scheduling[{epoch}]", batches, where=WHERE)
        self.scheduling = {0: 1, **scheduling}
        self.epochs = sorted(self.scheduling)

    def going_to_accumulate_grad_batches(self) -> bool:
        """Return whether any epoch has steps of several batches."""
        return any(batches > 1 for batches in self.scheduling.values())

    def get_accumulate_grad_batches(self, epoch: int) -> int:
        """Return how many batches make a step in an epoch."""
        return self.scheduling[max(start for start in self.epochs if start <= epoch)]

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Refuse what this callback cannot change."""
        if stage != "fit":
            return
        if getattr(task, "automatic_optimization", True) is False:
            raise option_contradicted(
                f"under manual optimization training_step decides when to step, and {WHERE} is"
                " given",
                where=WHERE,
                fix="step the optimizer in every n-th training_step",
            )
        if trainer.accumulate_grad_batches != 1:
            raise option_contradicted(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} and {WHERE} both say"
                " how many batches make a step",
                where="Trainer(accumulate_grad_batches=...)",
                fix=f"{WHERE}({{0: {trainer.accumulate_grad_batches}, ...}}) alone",
            )

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Refuse numbers that a limit of batches cuts through, before hours were trained."""
        for batches in self.scheduling.values():
            trainer.check_accumulation(batches)

    def on_train_epoch_start(self, trainer: Any, task: Any) -> None:
        """Set the number of batches in a step."""
        trainer.accumulate_grad_batches = self.get_accumulate_grad_batches(trainer.current_epoch)
