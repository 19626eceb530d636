"""Detect a copy of a parallel model that is trained: nobody averages its gradients.

A deep copy of a model that ``setup`` returned is a plain module, as on one rank: for averaged
weights, a teacher, or an evaluation. An optimizer that steps with its gradients would make ranks
drift apart. Gradients that no optimizer uses do no harm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UsageError
from paceline.machine.parameters import held_by
from paceline.train.session import step_hooks


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
        step_hooks.watch(self)

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
