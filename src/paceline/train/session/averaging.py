"""Keep an exponential moving average of a model's parameters, which is part of checkpoints.

The average is torch's ``AveragedModel``. Parameters are the same on all ranks after each step of
the optimizer, and so is their average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline.errors import UsageError, option_contradicted, option_invalid

_WHERE = "session.average(model, decay=...)"


def average(
    model: nn.Module,  # set up
    decay: float,  # weight of the average so far, from 0 to 1, without both
    # of the session; the last that holds a parameter of the model updates the average
    optimizers: Sequence[Optimizer],
    *,
    say: Callable[[str], None],  # prints a line on rank 0
) -> AveragedModel:
    """Return the average of a model, which each step of its optimizer updates.

    Raises UsageError if ``decay`` is not such a number, or no optimizer holds a parameter of the
    model.
    """
    _check_decay(decay)
    optimizer = _last_of(model, optimizers)
    _say_if_too_coarse(model, decay, say)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    averaged.requires_grad_(False).eval()

    def update(*_: Any) -> None:
        averaged.update_parameters(model)

    optimizer.register_step_post_hook(update)
    return averaged


def _check_decay(decay: Any) -> None:
    is_number = isinstance(decay, int | float) and not isinstance(decay, bool)
    if not is_number or not 0 < decay < 1:
        what = f"decay={decay!r} is not a number between 0 and 1"
        fix = "session.average(model, decay=0.999)"
        raise option_invalid(what, where=_WHERE, fix=fix)


def _last_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> Optimizer:
    parameters = set(model.parameters())
    holders = [
        optimizer
        for optimizer in optimizers
        if any(not parameters.isdisjoint(group["params"]) for group in optimizer.param_groups)
    ]
    if not holders:
        raise option_contradicted(
            f"no optimizer that was set up holds a parameter of {type(model).__name__}",
            where=_WHERE,
            why="the average is updated after each step of the model's optimizer",
            fix="model, optimizer = session.setup(model, optimizer), then session.average",
        )
    return holders[-1]


def _say_if_too_coarse(model: nn.Module, decay: float, say: Callable[[str], None]) -> None:
    """Warn of a type in which an update rounds to nothing, such as bfloat16 with 0.999."""
    dtypes = {value.dtype for value in model.parameters() if value.is_floating_point()}
    coarsest = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    if 1 - decay < coarsest:
        bits = int(-math.log2(coarsest))
        say(
            f"the average is kept in the model's type, whose numbers have {bits} bits: updates of"
            f" {1 - decay:.2g} are usually lost; use mixed precision, or a smaller decay"
        )


def not_whole() -> UsageError:
    """Return the error for a model of which a rank does not hold all parameters."""
    return option_contradicted(
        "the model is sharded, so no rank holds the whole of it",
        where=_WHERE,
        fix='Session(strategy="ddp"), and no parallelize_module',
    )
