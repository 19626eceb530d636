"""Turn the result of ``training_step`` into steps of the optimizers, or let the task do so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from paceline.errors import UsageError, option_contradicted, option_invalid
from paceline.train.session import Session
from paceline.train.trainer.hooks import Hooks, has_own
from paceline.train.trainer.module import Module
from paceline.train.trainer.optimizers import Schedule
from paceline.train.trainer.options import TrainingPlan
from paceline.train.trainer.work import Work

if TYPE_CHECKING:
    from paceline.train.trainer.attributes import Attributes


class Optimization:
    """Runs backward and the optimizers on the loss that ``training_step`` returns."""

    is_manual = False  # whether the task runs backward and the optimizers itself

    def __init__(self, trainer: Attributes, plan: TrainingPlan, work: Work, hooks: Hooks) -> None:
        self._trainer, self._plan, self._work = trainer, plan, work
        self._session: Session = trainer.session
        self.schedules: Sequence[Schedule] = ()  # schedulers that step with the optimizers
        self._before_backward = hooks.caller("on_before_backward")
        self._after_backward = hooks.caller("on_after_backward")
        self._before_step = hooks.caller("on_before_optimizer_step")
        self._before_zero = hooks.caller("on_before_zero_grad")
        self._step_of = _override(work.task, "optimizer_step")
        self._zero_of = _override(work.task, "optimizer_zero_grad")
        self._clip_of = _override(work.task, "configure_gradient_clipping")
        # the task's own lr_scheduler_step; None without one
        self.schedule_of = _override(work.task, "lr_scheduler_step")
        self.loss: torch.Tensor | None = None  # the last loss, detached; None before the first one

    @property
    def num_steps(self) -> int:
        """Optimizer steps so far."""
        return self._session.step

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""

    def run(self, source: Any, batch: Any, batch_idx: int) -> tuple[Any, bool]:
        """Train on a batch; return the result of ``training_step``, and whether a step is complete.

        ``source`` knows the rows of the batch, ``batch_idx`` is its number in the epoch.
        """
        position = () if source.dataloader_idx is None else (source.dataloader_idx,)
        # A rank without rows takes part in DDP's collectives, with a row of another rank.
        with nullcontext() if source.rows else self._work.uncounted():
            outputs = self._work.train(batch, batch_idx, *position)
        loss = outputs if isinstance(outputs, torch.Tensor) else loss_of(outputs)
        weight = outputs.get("weight") if isinstance(outputs, Mapping) else None
        if weight is None:
            weight = source.weight
        ends_group = self._backward(loss, weight)
        self.loss = loss.detach()
        if ends_group:
            self._step(batch_idx)
        return outputs, ends_group

    def _backward(self, loss: torch.Tensor, weight: Any) -> bool:
        if self._before_backward:
            self._before_backward(loss)
        ends_group = self._session.backward(loss, weight)
        if self._after_backward:
            self._after_backward()
        return ends_group

    def _step(self, batch_idx: int) -> None:
        epoch = self._trainer.current_epoch
        for optimizer in self._trainer.optimizers:
            if self._before_step:
                self._before_step(optimizer)
            self._clip(optimizer)
            if self._step_of:
                self._step_of(epoch, batch_idx, optimizer, lambda: self.loss)
            else:
                optimizer.step()
            if self._before_zero:
                self._before_zero(optimizer)
            if self._zero_of:
                self._zero_of(epoch, batch_idx, optimizer)
            else:
                optimizer.zero_grad()
        # Not required: within an epoch a monitored metric may not have been logged yet.
        for schedule in self.schedules:
            if self._session.step % schedule.frequency == 0:
                schedule.step(self._trainer.callback_metrics, required=False, how=self.schedule_of)

    def _clip(self, optimizer: Optimizer) -> None:
        plan = self._plan
        if self._clip_of:
            self._clip_of(optimizer, plan.gradient_clip_val, plan.gradient_clip_algorithm)
        elif plan.gradient_clip_val is not None:
            self._trainer.clip_gradients(optimizer)


class ManualOptimization(Optimization):
    """Lets ``training_step`` run backward and the optimizers itself.

    ``training_step`` is not called through DDP, because it has a backward for each optimizer; each
    ``manual_backward`` passes its loss through DDP instead.
    """

    is_manual = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._num_steps = 0
        self._in_step = False
        self._weight: float | None = None
        # The script calls step itself, so that only the optimizer's own hooks see it.
        for optimizer in self._trainer.optimizers:
            optimizer.register_step_pre_hook(self._note_before_step)
            optimizer.register_step_post_hook(self._note_step)

    @property
    def num_steps(self) -> int:
        """Optimizer steps so far, of all optimizers together."""
        return self._num_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"num_steps": self._num_steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a number of steps."""
        self._num_steps = state.get("num_steps", 0)

    def run(self, source: Any, batch: Any, batch_idx: int) -> tuple[Any, bool]:
        """Let ``training_step`` train on a batch; a step is complete after each of them."""
        position = () if source.dataloader_idx is None else (source.dataloader_idx,)
        self._weight, self._in_step = source.weight, True
        try:
            with nullcontext() if source.rows else self._work.uncounted():
                outputs = self._work.evaluate("training_step", batch, batch_idx, *position)
        finally:
            self._in_step = False
        return outputs, True

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of a loss, averaged over ranks.

        Raises UsageError if ``training_step`` is not running.
        """
        if not self._in_step:
            raise _misplaced("manual_backward is called outside of training_step")
        self._backward(self._work.reduced(loss), self._weight)
        self.loss = loss.detach()

    def _note_before_step(self, optimizer: Optimizer, _args: Any, _options: Any) -> None:
        if self._in_step and self._before_step:
            self._before_step(optimizer)

    def _note_step(self, _optimizer: Optimizer, _args: Any, _options: Any) -> None:
        self._num_steps += self._in_step


def _override(task: Any, name: str) -> Callable[..., Any] | None:
    """Return a method that the task has in place of ours; None without one."""
    return getattr(task, name) if has_own(task, name, base=Module) else None


def loss_of(outputs: Any) -> torch.Tensor:
    """Return the loss in the result of ``training_step``."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if isinstance(loss, torch.Tensor):
        return loss
    what = type(outputs).__name__
    if isinstance(outputs, Mapping):
        what = f"a dict with {', '.join(map(str, outputs))}"
    raise option_invalid(
        f"training_step returned {what}, and no loss",
        where="training_step",
        why="if one rank leaves out a batch, the others wait for it",
        fix=(
            'return the loss, a tensor or a dict with it as "loss"; to leave a batch out:'
            " return 0 * loss"
        ),
    )


def _misplaced(what: str) -> UsageError:
    return option_contradicted(
        what,
        where="self.manual_backward(loss)",
        fix="automatic_optimization = False, and manual_backward in training_step",
    )
