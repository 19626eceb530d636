"""Train with averages of the weights: over steps, exponentially, or over the last epochs.

Weights are equal on all ranks, so their averages are, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn

from paceline.errors import UsageError, option_contradicted
from paceline.train.trainer.callback import Callback
from paceline.train.trainer.optimizers import Schedule
from paceline.train.trainer.options import count, invalid, one_of

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class WeightAveraging(Callback):
    """Averages the weights, validates with the averages, and leaves them in the model at the end.

    Args:
        device: Device of the averages; the model's if None.
        use_buffers: Whether buffers are averaged too.
        **options: Options of torch's ``AveragedModel``, such as ``avg_fn``.
    """

    def __init__(self, device: Any = None, use_buffers: bool = True, **options: Any) -> None:
        self._device, self._use_buffers, self._options = device, use_buffers, options
        self._average: AveragedModel | None = None
        self._waiting: dict[str, Any] | None = None  # restored before the average exists
        self._own: dict[str, torch.Tensor] | None = None  # the weights during a validation
        self._last_step = 0

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether to include the weights now; by default after each step.

        Args:
            step_idx: Number of the step that was made, from 0; None at the end of an epoch.
            epoch_idx: Number of the epoch that has ended, from 0; None after a step.
        """
        return step_idx is not None

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Refuse a task whose weights cannot be copied."""
        if stage == "fit" and not isinstance(task, nn.Module):
            raise _not_a_module(self, task)

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Make the average, of the weights that training begins with."""
        if any(hasattr(parameter, "device_mesh") for parameter in task.parameters()):
            raise _sharded(self)
        if self._average is None:
            self._average = AveragedModel(
                copy.deepcopy(task), self._device, use_buffers=self._use_buffers, **self._options
            )
        if self._waiting is not None:
            self._average.load_state_dict(self._waiting)
            self._waiting = None
        self._last_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Include the weights after a step."""
        step = trainer.global_step
        if step > self._last_step and self.should_update(step_idx=step - 1):
            self._update(task)
        self._last_step = step

    def on_train_epoch_end(self, trainer: Any, task: Any) -> None:
        """Include the weights after an epoch."""
        if self.should_update(epoch_idx=trainer.current_epoch):
            self._update(task)

    def on_validation_epoch_start(self, trainer: Any, task: Any) -> None:
        """Validate with the averages."""
        if self._average is not None and trainer.state.fn == "fit":
            self._own = {key: value.clone() for key, value in task.state_dict().items()}
            task.load_state_dict(self._average.module.state_dict())

    def on_validation_epoch_end(self, trainer: Any, task: Any) -> None:
        """Continue with the weights."""
        if self._own is not None:
            task.load_state_dict(self._own)
            self._own = None

    def on_train_end(self, trainer: Any, task: Any) -> None:
        """Leave the averages in the model."""
        if self._average is not None:
            task.load_state_dict(self._average.module.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return {} if self._average is None else {"average": self._average.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from averages."""
        self._waiting = state_dict.get("average")

    def _update(self, task: nn.Module) -> None:
        assert self._average is not None  # made in on_train_start
        self._average.update_parameters(task)


class EMAWeightAveraging(WeightAveraging):
    """Averages the weights exponentially: ``average = decay * average + (1 - decay) * weights``.

    Args:
        device: Device of the averages; the model's if None.
        use_buffers: Whether buffers are averaged too.
        decay: The factor.
        update_every_n_steps: Steps between updates.
        update_starting_at_step: First step to include; None for no such limit.
        update_starting_at_epoch: First epoch after whose end to update too; None for none.
        **options: Options of torch's ``AveragedModel``.

    Raises:
        UsageError: The decay is not between 0 and 1, or ``update_every_n_steps`` is not a number
            of steps.
    """

    def __init__(
        self,
        device: Any = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
        **options: Any,
    ) -> None:
        if not 0 <= decay <= 1:
            raise invalid(
                "decay",
                decay,
                "between 0 and 1",
                where="EMAWeightAveraging",
                fix="EMAWeightAveraging(decay=0.999)",
            )
        super().__init__(device, use_buffers, avg_fn=get_ema_avg_fn(decay), **options)
        self._every = count(
            "update_every_n_steps", update_every_n_steps, where="EMAWeightAveraging"
        )
        self._from_step, self._from_epoch = update_starting_at_step, update_starting_at_epoch

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Return whether to include the weights now."""
        if step_idx is not None:
            return step_idx >= (self._from_step or 0) and step_idx % self._every == 0
        is_late = self._from_epoch is not None and epoch_idx is not None
        return is_late and (epoch_idx or 0) >= (self._from_epoch or 0)


class StochasticWeightAveraging(Callback):
    """Averages the weights that the last epochs begin with, at a rate that anneals to ``swa_lrs``.

    The model has the averages at the end of ``fit``. As in Izmailov et al. (2018), without their
    last pass for the statistics of batch norm.

    Args:
        swa_lrs: Learning rate, or a list with one for each group of the optimizer.
        swa_epoch_start: First epoch, as a number from 1 or as a fraction of ``max_epochs``.
        annealing_epochs: Epochs in which the learning rate gets there.
        annealing_strategy: ``"cos"`` or ``"linear"``.
        avg_fn: As for torch's ``AveragedModel``; the mean if None.
        device: Device of the averages; the model's if None.

    Raises:
        UsageError: An argument is invalid, there are several optimizers, or the model has batch
            norm.
    """

    def __init__(
        self,
        swa_lrs: float | list[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: Callable[..., torch.Tensor] | None = None,
        device: Any = "cpu",
    ) -> None:
        self._rates, self._start = swa_lrs, swa_epoch_start
        self._annealing_epochs, self._avg_fn, self._device = annealing_epochs, avg_fn, device
        self._strategy = one_of(
            "annealing_strategy", annealing_strategy, ("cos", "linear"), where=type(self).__name__
        )
        self._average: AveragedModel | None = None
        self._schedule: SWALR | None = None
        self._last_epoch = -1  # the last that was included
        self._waiting: dict[str, Any] | None = None

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        """Refuse what cannot be averaged."""
        if stage != "fit":
            return
        if not isinstance(task, nn.Module):
            raise _not_a_module(self, task)
        if any(isinstance(part, BATCH_NORMS) for part in task.modules()):
            raise option_contradicted(
                "the statistics of batch norm would be those of other weights than the averages",
                where="StochasticWeightAveraging",
                fix="EMAWeightAveraging(), which averages buffers too",
            )
        if trainer.max_epochs is None or trainer.max_epochs < 0:
            raise option_contradicted(
                "the last epochs are averaged, and max_epochs is not given",
                where="StochasticWeightAveraging",
                fix="Trainer(max_epochs=10)",
            )

    def first_epoch(self, max_epochs: int) -> int:
        """Return the first epoch whose weights are averaged, from 0."""
        start = self._start
        first = int(max_epochs * start) if isinstance(start, float) else start
        return max(first - 1, 0)

    def on_train_epoch_start(self, trainer: Any, task: Any) -> None:
        """Include the weights that the epoch begins with."""
        epoch = trainer.current_epoch
        if epoch < self.first_epoch(trainer.max_epochs):
            return
        if self._average is None:
            self._begin(trainer, task)
        assert self._average is not None
        if epoch > self._last_epoch:  # not the rest of an epoch that a checkpoint interrupted
            self._average.update_parameters(task)
            self._last_epoch = epoch

    def _begin(self, trainer: Any, task: nn.Module) -> None:
        if any(hasattr(parameter, "device_mesh") for parameter in task.parameters()):
            raise _sharded(self)
        if len(trainer.optimizers) != 1:
            raise option_contradicted(
                f"there are {len(trainer.optimizers)} optimizers, and the rate of one is annealed",
                where="StochasticWeightAveraging",
                fix="one optimizer, with several groups of parameters",
            )
        optimizer = trainer.optimizers[0]
        rates = [group["lr"] for group in optimizer.param_groups]
        self._average = AveragedModel(copy.deepcopy(task), self._device, self._avg_fn)
        self._schedule = SWALR(
            optimizer,
            swa_lr=self._rates,  # type: ignore[arg-type]  # torch takes a list too
            anneal_epochs=self._annealing_epochs,
            anneal_strategy=self._strategy,  # type: ignore[arg-type]  # checked before
        )
        if self._waiting is not None:
            self._average.load_state_dict(self._waiting["average"])
            self._schedule.load_state_dict(self._waiting["schedule"])
            self._last_epoch = self._waiting["last_epoch"]
            self._waiting = None
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate  # the new schedule has set the one it begins with
        trainer.replace_schedules([Schedule(self._schedule)])

    def on_train_end(self, trainer: Any, task: Any) -> None:
        """Leave the averages in the model."""
        if self._average is not None:
            task.load_state_dict(self._average.module.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and the schedule."""
        if self._average is None or self._schedule is None:
            return {}
        return {
            "average": self._average.state_dict(),
            "schedule": self._schedule.state_dict(),
            "last_epoch": self._last_epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from averages."""
        self._waiting = state_dict or None


def _not_a_module(callback: Any, task: Any) -> UsageError:
    return option_contradicted(
        f"{type(task).__name__} is not a module, and its weights are averaged",
        where=type(callback).__name__,
        fix=f"class {type(task).__name__}(paceline.Module)",
    )


def _sharded(callback: Any) -> UsageError:
    return option_contradicted(
        "the weights are in shards, and their average is of whole weights",
        where=type(callback).__name__,
        fix='Trainer(strategy="ddp")',
    )
