"""Gather rows from all ranks in order; a backward reaches the rank that each row comes from.

In a step, a rank's loss counts with the factor w of ``session.backward``, and the gradients of all
ranks are averaged. So the gradient of a row is the sum over all ranks of w times the gradient of
their loss, which is computed in the backward of the gather. A loss over gathered rows then has the
gradient of a single rank, whether each rank's loss is over its own rows or over all of them.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist

from paceline.errors import option_invalid
from paceline.train import runtime
from paceline.train.data import Iteration, in_order, rebuilt


def gather(
    value: Any,
    iteration: Iteration | None,
    *,
    gradients: bool = False,
    group: runtime.Group = None,  # the ranks that share out the data
) -> Any:
    """Return the rows of all ranks, in the order of the loop if their number fits it.

    ``value`` holds tensors of shape ``[rows, ...]`` in dicts, lists and tuples. ``gradients``: a
    backward continues through the rows. Raises UsageError if a value has no rows.
    """
    if isinstance(value, dict):
        # Ranks may have filled their dicts in different orders.
        parts = {
            key: gather(value[key], iteration, gradients=gradients, group=group)
            for key in sorted(value, key=repr)
        }
        gathered = copy.copy(value)
        for key, part in parts.items():  # model outputs of transformers refuse update
            gathered[key] = part
        return gathered
    if isinstance(value, list | tuple):
        return rebuilt(
            value, lambda part: gather(part, iteration, gradients=gradients, group=group)
        )
    if not isinstance(value, torch.Tensor) or not value.dim():
        is_tensor = isinstance(value, torch.Tensor)
        kind = "a tensor of shape []" if is_tensor else f"an object of type {type(value).__name__}"
        raise option_invalid(
            f"{kind} has no rows to gather",
            where="session.gather(...)",
            fix="pass tensors of shape [rows, ...]; session.reduce adds up numbers",
        )
    own = None if iteration is None else iteration.own_of(len(value))
    if own is not None:  # a borrowed row is gathered from the rank that owns it
        value = value[torch.tensor(own, dtype=torch.int64, device=value.device)]
    if gradients:
        sizes: list[int] = []
        has_weight = own is None  # the loss of a borrowed row has none
        rows = _Gather.apply(value, sizes, has_weight, group)
    else:
        rows, sizes = runtime.all_rows(value, group)
    spans = iteration.spans_of(sizes) if iteration is not None and len(sizes) > 1 else None
    if spans is None:
        return rows
    return rows[torch.tensor(in_order(spans), dtype=torch.int64, device=rows.device)]


def as_the_others(value: Any, group: runtime.Group = None) -> Any:
    """Return numbers in the other ranks' types: a rank without a step still has its initial 0.

    A collective. Dicts, lists and tuples are converted recursively.
    """
    kinds: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(kinds, _kinds(value), group=group)
    return _converted(value, kinds)


def _kinds(value: Any) -> Any:
    """Return the types of nested numbers: an empty tensor and its shape, a float or an int."""
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype), list(value.shape)
    if isinstance(value, dict):
        return {key: _kinds(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_kinds(part) for part in value]
    return 0.0 if isinstance(value, float) else 0


def _converted(value: Any, kinds: list[Any]) -> Any:
    """Return nested numbers in the types that the ranks have in their places."""
    if isinstance(value, dict):
        dicts = [kind for kind in kinds if isinstance(kind, dict)]
        return {
            key: _converted(part, [kind[key] for kind in dicts if key in kind])
            for key, part in value.items()
        }
    if isinstance(value, list):
        lists = [kind for kind in kinds if isinstance(kind, list)]
        return [
            _converted(part, [kind[place] for kind in lists if place < len(kind)])
            for place, part in enumerate(value)
        ]
    return _converted_number(value, kinds) if isinstance(value, int | float) else value


def _converted_number(value: float, kinds: list[Any]) -> Any:
    """Return a number as the tensor or float that another rank has in its place."""
    tensors = [kind for kind in kinds if isinstance(kind, tuple)]
    if tensors:
        like, shape = tensors[0]
        return torch.full(shape, value, dtype=like.dtype)
    return float(value) if any(isinstance(kind, float) for kind in kinds) else value


class _Gather(torch.autograd.Function):
    """All-gather of rows; its backward adds up the gradients of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, sizes: list[int], has_weight: bool, group: runtime.Group
    ) -> torch.Tensor:
        rows, counts = runtime.all_rows(value, group)
        sizes += counts
        ctx.group = group
        ctx.sizes, ctx.has_weight = counts, has_weight
        return rows.clone() if len(counts) == 1 else rows  # an input must not be returned

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        if not ctx.has_weight:  # it may be NaN, as that of a mean over no rows
            gradient = torch.zeros_like(gradient)
        total = runtime.sum_over_ranks(gradient, ctx.group)
        return total.split(ctx.sizes)[runtime.rank(ctx.group)], None, None, None
