"""Install the check inside a rank that ``--check-finite`` requests.

It checks a loss when its backward begins, and a gradient before it is accumulated, and does not
communicate with other ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paceline.launch.probe.finite import FiniteCheck
from paceline.machine.compiled import left_alone, not_traced


def install(slot: memoryview[int], *, rank: int) -> None:
    """Raise when a loss or gradient is not finite."""
    check = FiniteCheck(slot, rank)
    _follow_parameters(check.follow)
    register_optimizer_step_pre_hook(_unless_compiled(check.before_step))
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def checked_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        check.see_losses([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        backward(tensors, *args, **kwargs)

    torch.autograd.backward = not_traced(checked_backward)


def _unless_compiled(
    hook: Callable[[Optimizer, Any, Any], Any],
) -> Callable[[Optimizer, Any, Any], Any]:
    """Return a hook that does nothing in compiled steps, whose graph it would break."""

    def check(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return hook(optimizer, args, kwargs)

    return left_alone(check)


def _follow_parameters(follow: Callable[[Iterable[torch.Tensor]], None]) -> None:
    """Call ``follow`` with the parameters of every new optimizer."""
    add = Optimizer.add_param_group

    @functools.wraps(add)
    def add_and_follow(self: Optimizer, param_group: dict[str, Any]) -> None:
        add(self, param_group)
        follow(self.param_groups[-1]["params"])

    Optimizer.add_param_group = left_alone(add_and_follow)  # type: ignore[method-assign]
