"""Detect a backward that bypasses the session: ``loss.backward()`` instead of ``session.backward``.

Its gradients are those of the mean of the ranks' means, which is wrong for uneven shares, and
``session.step`` does not count it. Gradients that no optimizer uses, such as those of an attack on
the inputs, do no harm. So an error is raised only when an optimizer step or a ``session.backward``
meets such gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.machine.parameters import held_by
from paceline.train.session import copies, step_hooks


class OutsideBackward:
    """Detects gradients of a session's models that come from a backward outside the session.

    Each backward of the session runs in this context manager.

    Every trained parameter has a hook until the session's first backward. Afterwards one parameter
    of each model has one, which costs less than a microsecond a step.
    """

    def __init__(self) -> None:
        self.is_inside = False  # a backward of the session runs
        self._wide: list[_Watch] = []  # watches with hooks on all parameters of their model
        self._left: dict[torch.Tensor, None] = {}  # parameters with gradients from outside

    def watch(self, model: nn.Module) -> None:
        """Detect gradients that are accumulated in a model's parameters."""
        watch = _Watch(self)
        for parameter in model.parameters():
            if parameter.requires_grad:
                _take_off(parameter)
                watch.handles[parameter] = parameter.register_post_accumulate_grad_hook(watch)
        self._wide.append(watch)

    def note(self, parameter: torch.Tensor) -> None:
        """Record a gradient that a backward outside of the session has accumulated."""
        if not self._left:
            step_hooks.watch(self)
        self._left[parameter] = None

    def __enter__(self) -> None:
        """Begin a backward of the session."""
        if self._left:
            self._refuse(list(self._left), where="loss.backward() before session.backward(loss)")
        self.is_inside = True

    def __exit__(self, *_: object) -> None:
        self.is_inside = False
        if self._wide:
            self._wide = [watch for watch in self._wide if not watch.keep_one()]

    def before_step(self, optimizer: Optimizer) -> None:
        """Refuse a step with gradients from outside the session."""
        held = set(held_by(optimizer))
        foreign = [parameter for parameter in self._left if parameter in held]
        if foreign:
            self._refuse(foreign, where=f"{type(optimizer).__name__}.step() after loss.backward()")

    def _refuse(self, parameters: Sequence[torch.Tensor], *, where: str) -> None:
        """Refuse gradients that still exist; forget those that the script has cleared."""
        there = [parameter for parameter in parameters if is_there(parameter.grad)]
        for parameter in parameters:
            del self._left[parameter]
        if not self._left:
            step_hooks.unwatch(self)
        if there:
            raise _outside(len(there), where)


class _Watch:
    """The hook on the parameters of one model."""

    def __init__(self, outside: OutsideBackward) -> None:
        self.handles: dict[torch.Tensor, Any] = {}
        self.used: torch.Tensor | None = None  # a parameter that the session's backward has reached
        self._outside = outside

    def __call__(self, parameter: torch.Tensor) -> None:
        if self._outside.is_inside:
            self.used = parameter
        else:
            self._outside.note(parameter)

    def keep_one(self) -> bool:
        """Keep the hook on one trained parameter only; return whether one is known."""
        if self.used is None:
            return False
        for parameter, handle in self.handles.items():
            if parameter is not self.used:
                handle.remove()
        self.handles = {self.used: self.handles[self.used]}
        return True


def _take_off(parameter: torch.Tensor) -> None:
    """Remove the hooks of an earlier session, which does not see the backward of this one."""
    copies.forget(parameter)
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    for number in [number for number, hook in hooks.items() if isinstance(hook, _Watch)]:
        del hooks[number]


def is_there(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient exists and is not all zeros."""
    if gradient is None:
        return False
    values = gradient._values() if gradient.is_sparse else gradient
    local: Any = values.to_local() if hasattr(values, "to_local") else values  # a DTensor's shard
    return bool(local.any())


def _outside(count: int, where: str) -> UsageError:
    return UsageError.of(
        "backward-outside-session",
        f"{count} parameters hold gradients of a backward that the session has not seen",
        where=where,
        why=(
            "session.backward weights each rank's rows and counts steps; after loss.backward()"
            " uneven shares count wrongly, and session.step stays behind, also in checkpoints"
        ),
        fix="if session.backward(loss): optimizer.step(); optimizer.zero_grad()",
    )
