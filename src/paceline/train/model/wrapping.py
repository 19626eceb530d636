"""Decide whether a model was made parallel in a wrong order that torch does not notice. Pure.

``fully_shard``, ``parallelize_module`` and ``to_empty`` replace a model's parameters. An optimizer
that was made before goes on updating the old ones: the loss does not fall, and nothing fails (seen
with torch 2.13). Other wrong orders, such as a root that is sharded before its blocks, torch
refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from torch import nn

from paceline.errors import UsageError
from paceline.train.model.sharded import is_dtensor

ORDER = "parallelize_module, activation checkpointing, compile, fully_shard on blocks and then on"
ORDER += " the model, optimizer"


def made_too_early(
    kind: str,  # the optimizer's class
    foreign: Collection[nn.Parameter],  # of the optimizer, and of no model that was set up
    model: nn.Module,
) -> UsageError | None:
    """Return the error for an optimizer of parameters that were replaced; None if not proven.

    Proven is it if every foreign parameter is of an earlier form than one of the model's of the
    same shape: without memory, or with a mesh of fewer dimensions, or none.
    """
    steps: Counter[str] = Counter()
    present: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        present.setdefault(tuple(parameter.shape), []).append(parameter)
    for earlier in foreign:
        candidates = present.get(tuple(earlier.shape), [])
        replaced_by = [step for now in candidates if (step := _replaced_by(earlier, now))]
        if not replaced_by:
            return None
        steps[replaced_by[0]] += 1
    step = steps.most_common(1)[0][0]
    return UsageError.of(
        "wrapping-order",
        f"{kind} was made before {step}, which has replaced {len(foreign)} of its parameters",
        where="session.setup(model, optimizer)",
        why="its steps would update the old ones, and leave the model as it is",
        fix=f"{kind}(model.parameters(), ...) after {step}; the order: {ORDER}",
    )


def _replaced_by(earlier: nn.Parameter, now: nn.Parameter) -> str:
    """Return the function that replaces a parameter of one form by one of the other."""
    if earlier.is_meta and not now.is_meta:
        return "model.to_empty"
    if _num_dims(now) <= _num_dims(earlier):
        return ""
    return "fully_shard or parallelize_module"


def _num_dims(parameter: Any) -> int:
    """Return the dimensions of the mesh that a parameter is on; 0 without one."""
    return parameter.device_mesh.ndim if is_dtensor(parameter) else 0
