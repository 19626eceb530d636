"""Gather rows so that a backward reaches the rank that each row comes from.

In a step, a rank's loss counts with the factor w of ``session.backward``, and the gradients of all
ranks are averaged. So the gradient of a row is the sum over all ranks of w times the gradient of
their loss, which is computed in the backward of the gather. A loss over gathered rows then has the
gradient of a single rank, whether each rank's loss is over its own rows or over all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.train import runtime


def rows_of_all(value: torch.Tensor, *, has_weight: bool) -> tuple[torch.Tensor, list[int]]:
    """Return the rows of all ranks, by rank, and the number of rows of each; differentiable.

    ``value`` has the shape ``[rows, ...]``. ``has_weight``: this rank's loss counts. The gradients
    of a loss without weight may be NaN, as that of a mean over no rows.
    """
    sizes: list[int] = []
    rows: torch.Tensor = _Gather.apply(value, sizes, has_weight)
    return rows, sizes


class _Gather(torch.autograd.Function):
    """All-gather of rows; its backward adds up the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, sizes: list[int], has_weight: bool) -> torch.Tensor:
        rows, counts = runtime.all_rows(value)
        sizes += counts
        ctx.sizes, ctx.has_weight = counts, has_weight
        return rows.clone() if len(counts) == 1 else rows  # an input must not be returned

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        if not ctx.has_weight:
            gradient = torch.zeros_like(gradient)
        total = runtime.sum_over_ranks(gradient)
        return total.split(ctx.sizes)[runtime.rank()], None, None
