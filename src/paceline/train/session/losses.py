"""Decide from its autograd graph whether a loss is a mean over rows.

A rank's loss is weighted by its share of the batch, which is right for a mean over the rank's rows.
A sum over rows would count the share twice. A mean over something that rows have different numbers
of has a different share. Either way the result would depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from paceline.errors import UsageError

SUM = 2  # torch's number of reduction="sum" in the nodes of its losses; 0 is "none"
MEAN = 1
# Autograd nodes of torch's losses that store their reduction, with the function that makes them.
LOSSES = {
    "NllLossBackward0": "cross_entropy",
    "NllLoss2DBackward0": "cross_entropy",
    "MseLossBackward0": "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "BinaryCrossEntropyBackward0": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "SoftMarginLossBackward0": "soft_margin_loss",
    "MultiMarginLossBackward0": "multi_margin_loss",
    "MultilabelMarginLossBackward0": "multilabel_margin_loss",
}
# Nodes that keep a sum a sum. A division or product may turn it into a mean, so the search ends
# there.
_TRANSPARENT = {
    "AddBackward0",
    "CloneBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "ToCopyBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
    "_DDPSinkBackward",
}
# Operations that hand-written losses apply to the difference of prediction and target.
_OF_DIFFERENCES = {"AbsBackward0", "PowBackward0"}
_LEAF = "torch::autograd::AccumulateGrad"


def function_that_sums(loss: torch.Tensor, num_rows: int) -> str:
    """Return the operation that makes a loss, or a summand of it, a sum over this rank's rows.

    It is source text; empty if a sum is not proven. The loss has the shape ``[]``.
    """
    return next(filter(None, (_function_of(node, num_rows) for node in _summands(loss))), "")


def other_than_rows(loss: torch.Tensor, num_rows: int) -> str:
    """Return what a loss, or a summand of it, averages over if that differs from row to row.

    It is a clause for a message; empty if the loss, of shape ``[]``, is not proven to average over
    something else.
    """
    return next(filter(None, (_counted_by(node, num_rows) for node in _summands(loss))), "")


def _summands(loss: torch.Tensor) -> Iterator[Any]:
    """Iterate over the nodes whose values are added up to a loss."""
    visited: set[Any] = set()
    pending: list[Any] = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        if node.name() in _TRANSPARENT:
            pending += [inner for inner, _ in node.next_functions]


def _counted_by(node: Any, num_rows: int) -> str:
    """Return what a cross entropy divides by; empty if a multiple of the number of rows."""
    if LOSSES.get(node.name()) != "cross_entropy" or node._saved_reduction != MEAN:
        return ""
    weights, target = node._saved_weight, node._saved_target
    if weights is not None and bool((weights != weights[0]).any()):
        return "cross_entropy(..., weight=...) is a mean over the weights of the classes in a batch"
    counted = target != node._saved_ignore_index
    if not num_rows or target.numel() % num_rows:
        return ""
    # The labels of a row are adjacent, or strided if the first dimension is time; nothing says
    # which.
    by_row = (counted.reshape(num_rows, -1).sum(1), counted.reshape(-1, num_rows).sum(0))
    if any(bool((count == count[0]).all()) for count in by_row):
        return ""
    return (
        f"cross_entropy ignores labels of {node._saved_ignore_index}, of which rows have different"
        " numbers"
    )


def _function_of(node: Any, num_rows: int) -> str:
    """Return the function that a node sums over rows; empty if a sum over rows is not proven."""
    name = node.name()
    if name in LOSSES:
        is_sum = node._saved_reduction == SUM and not _is_of_parameter(node)
        return f'{LOSSES[name]}(..., reduction="sum")' if is_sum else ""
    if name != "SumBackward0":
        return ""
    sizes = tuple(node._saved_self_sym_sizes)
    inner = node.next_functions[0][0]
    if inner is None or not sizes or sizes[0] != num_rows:
        return ""
    if inner.name() in LOSSES and not _is_of_parameter(inner):
        return f'{LOSSES[inner.name()]}(..., reduction="none").sum()'
    if inner.name() in _OF_DIFFERENCES and _is_difference(inner.next_functions[0][0]):
        return "(prediction - target)...sum()"
    return ""


def _is_difference(node: Any) -> bool:
    return node is not None and node.name() == "SubBackward0" and not _is_of_parameter(node)


def _is_of_parameter(node: Any) -> bool:
    """Whether a node's input is a parameter, as in a penalty on weights, which has no rows."""
    return any(inner is not None and inner.name() == _LEAF for inner, _ in node.next_functions)


def loss_is_a_sum(function: str) -> UsageError:
    """Return the error for a loss that is a sum over rows."""
    return UsageError.of(
        "loss-is-a-sum",
        "the loss is a sum over rows, and session.backward takes the mean over this rank's rows",
        where="session.backward(loss)",
        evidence=(f"its last operation: {function}",),
        why=(
            "a rank's loss is weighted by its share of the batch; a sum would count the share a"
            " second time, and the result would depend on the number of ranks"
        ),
        fix=(
            "session.backward(loss / len(x)), and for steps of the same size multiply the"
            " learning rate by the batch size"
        ),
    )
