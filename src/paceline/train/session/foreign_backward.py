"""Detect gradients that no session averages: of ``loss.backward()``, and of a copied model.

Gradients of ``loss.backward()`` instead of ``session.backward`` are those of the mean of the ranks'
means, which is wrong for uneven shares, and ``session.step`` does not count it. A deep copy of a
model that ``setup`` returned is a plain module, as on one rank: for averaged weights, a teacher, or
an evaluation. An optimizer that steps with its gradients would make ranks drift apart. Gradients
that no optimizer uses, such as those of an attack on the inputs, do no harm. So an error is raised
only when an optimizer step or a ``session.backward`` meets such gradients.

Optimizers' steps are seen by torch's hook, which is set once and stays: taking it off while torch
goes through its hooks, which a garbage collection may do at any time, would end the step with an
error.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.errors import UsageError
from paceline.machine.compiled import left_alone, not_compiled
from paceline.machine.parameters import held_by


class StepWatcher(Protocol):
    """An object that looks at steps."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that is about to step."""


_watchers: weakref.WeakSet[StepWatcher] = weakref.WeakSet()
_hooks: list[Any] = []  # torch's hook, once it is set


def watch_steps(watcher: StepWatcher) -> None:
    """Call ``watcher.before_step`` before each step, until ``unwatch_steps`` or its end."""
    _watchers.add(watcher)
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_before_step))


def unwatch_steps(watcher: StepWatcher) -> None:
    """Stop calling a watcher."""
    _watchers.discard(watcher)


@left_alone
def _before_step(optimizer: Optimizer, *_: Any) -> None:
    if not torch.compiler.is_compiling():  # whose graph a look would break
        _look(optimizer)


@not_compiled
def _look(optimizer: Optimizer) -> None:
    for watcher in list(_watchers):
        watcher.before_step(optimizer)


class Copies:
    """Refuses an optimizer's step on a copy of a model, with gradients that are not averaged."""

    def __deepcopy__(self, _: Any) -> Copies:
        return self

    def watch(self, copied: nn.Module) -> None:
        """Detect gradients that are accumulated in a copy's parameters."""
        for parameter in copied.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.note)

    def note(self, _: torch.Tensor) -> None:
        """Check the steps of optimizers from now on."""
        watch_steps(self)

    def before_step(self, optimizer: Optimizer) -> None:
        """Refuse a step with gradients of a copy."""
        held = held_by(optimizer)
        count = sum(parameter.grad is not None and _is_watched(parameter) for parameter in held)
        if count:
            raise _not_averaged(optimizer, count)


def forget(parameter: torch.Tensor) -> None:
    """End the detection for a parameter, whose model is set up."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    for number in [number for number, hook in hooks.items() if _is_of_copies(hook)]:
        del hooks[number]


def _is_of_copies(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), Copies)


def _is_watched(parameter: torch.Tensor) -> bool:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return any(map(_is_of_copies, hooks.values()))


def _not_averaged(optimizer: Optimizer, count: int) -> UsageError:
    return UsageError.of(
        "gradients-not-averaged",
        f"{count} parameters of a copy of a model have gradients of this rank only",
        where=f"{type(optimizer).__name__}.step() after copy.deepcopy(model)",
        why="a copy is a plain module, which DDP does not average; ranks would drift apart",
        fix=(
            "twin, optimizer = session.setup(twin, optimizer); to train each rank's copy"
            " apart: copy.deepcopy(session.unwrap(model))"
        ),
    )


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
            watch_steps(self)
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
            unwatch_steps(self)
        if there:
            raise _not_seen(len(there), where)


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
    forget(parameter)
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


def _not_seen(count: int, where: str) -> UsageError:
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
