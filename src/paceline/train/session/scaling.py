"""Scale a learning rate with the batch size, with warm-up, and report the change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR

from paceline.errors import closest, option_contradicted, option_invalid

RULES = {
    "linear": "Goyal et al. 2017, for SGD",
    "sqrt": "Krizhevsky 2014; Malladi et al. 2022, for Adam and its kin",
}


@dataclass(frozen=True)
class RateScaling:
    """Growth of a learning rate with the batch size."""

    factor: float  # factor of the learning rate
    reason: str  # batch sizes and rule, one line to print


def check_is_new(has_restored: bool) -> None:
    """Refuse to scale learning rates that a checkpoint already holds scaled."""
    if has_restored:
        raise option_contradicted(
            "the learning rates were restored from a checkpoint, scaled already",
            where="session.scale_lr(...) after session.restore(...)",
            fix="call session.scale_lr, and register its result, before session.restore",
        )


def choose(*, batch_size: int, base_batch_size: int, rule: str) -> RateScaling:
    """Return the factor for a batch that grew from ``base_batch_size`` to ``batch_size``.

    Raises UsageError if a size is not positive, or the rule is unknown.
    """
    if rule not in RULES:
        near = closest(str(rule), RULES) or "linear"
        what = f"rule={rule!r} is not one of {', '.join(RULES)}"
        raise option_invalid(what, where="session.scale_lr(...)", fix=f'rule="{near}"')
    if batch_size < 1 or base_batch_size < 1:
        what = f"a batch size is not positive: {batch_size}, {base_batch_size}"
        raise option_invalid(what, where="session.scale_lr(...)")
    ratio = batch_size / base_batch_size
    factor = ratio if rule == "linear" else math.sqrt(ratio)
    return RateScaling(
        factor,
        f"batch {base_batch_size} -> {batch_size}, {rule} rule ({RULES[rule]}): x {factor:.4g}",
    )


def apply(
    optimizer: Optimizer, scaling: RateScaling, warmup_steps: int, *, say: Callable[[str], None]
) -> LinearLR:
    """Multiply an optimizer's learning rates and report it; return the schedule of the warm-up.

    The warm-up goes from the old learning rate to the new one in ``warmup_steps`` steps.
    """
    before = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * scaling.factor
        group.pop("initial_lr", None)  # of an earlier schedule; this schedule sets its own
    start = min(1.0, 1 / scaling.factor) if warmup_steps else 1.0
    schedule = LinearLR(optimizer, start_factor=start, total_iters=max(1, warmup_steps))
    after = ", ".join(f"{old:.4g} -> {old * scaling.factor:.4g}" for old in before)
    ramp = f", over the first {warmup_steps} steps" if warmup_steps else ""
    say(f"learning rate {after} ({scaling.reason}){ramp}")
    return schedule
