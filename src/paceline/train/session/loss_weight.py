"""Decide how much a loss counts in a step: by share of the batch, accumulated batches or weight.

A step's gradient is that of the mean over all samples of its group, on any number of ranks. DDP and
fsdp average over ranks, so a rank's loss, itself a mean over its rows, counts with
``rows x ranks / samples of the group``.

That is right for a mean over the rank's rows, which the loss's autograd graph shows. A sum over
rows would count the share twice. A mean over something that rows have different numbers of has a
different share. Either way the result would depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from paceline.errors import UsageError


class RowCounts(Protocol):
    """Numbers of samples, as a loader counts them."""

    @property
    def of_rank(self) -> int: ...
    @property
    def of_batch(self) -> int: ...
    @property
    def of_group(self) -> int | None: ...
    @property
    def ends_group(self) -> bool: ...


class LossFactors(NamedTuple):
    """The factors of one backward."""

    factor: float  # factor of the loss's gradient
    ends_group: bool  # whether the optimizer steps after this backward
    # factor of the gradients of the group's earlier batches, applied before this backward; usually
    # 1
    rescale: float = 1.0


@dataclass
class StepGroup:
    """The batches since the last step."""

    world_size: int  # number of ranks
    accumulate: int  # batches in a group, used where no loader determines its end
    total: Callable[[float], float]  # returns the sum of a weight over all ranks; a collective
    num_batches: int = 0  # backwards since the last step
    _own: float = 0.0  # sum of this rank's weights so far
    _known: float | None = 0.0  # sum over all ranks; None if a loss had a weight from the user
    _unit: float = 0.0  # divisor of the earlier batches, while the total is unknown

    def add(
        self, rows: RowCounts | None, weight: float | None, *, again: bool = False
    ) -> LossFactors:
        """Return the factors for the next loss, of a batch with ``rows`` (None without a loader).

        ``weight`` is that of this rank's loss, in any unit; it replaces the number of rows.
        ``again``: a second loss of the same batch. Raises UsageError if the weight is negative or
        not finite, or if it is a second loss in a group whose total is known only at its end, so
        the losses cannot be separated.
        """
        if weight is not None and not 0 <= weight < math.inf:
            raise _refusal(
                "option-invalid",
                f"weight={weight} is not a number from 0 on",
                "weight=number_of_tokens",
            )
        ends_group = self.num_batches + 1 >= self.accumulate if rows is None else rows.ends_group
        is_size_known = rows is None or rows.of_group is not None
        if is_size_known and weight is None and not self._unit:
            part = LossFactors(self._share(rows), ends_group)
        elif again and self.accumulate > 1:
            raise _refusal(
                "batch-weight-unknown",
                "a second loss of one batch, inside a group of accumulated batches whose size is"
                " known only at its end",
                "add the losses up: session.backward(first + second, weight=n), or"
                " Session(accumulate=1)",
            )
        else:
            part = self._weighted(rows, weight, ends_group)
        self.num_batches += 1
        if ends_group:
            self.drop()
        return part

    def drop(self) -> None:
        """Begin a new group."""
        self.num_batches, self._own, self._known, self._unit = 0, 0.0, 0.0, 0.0

    def _share(self, rows: RowCounts | None) -> float:
        if rows is None:
            return 1 / self.accumulate  # without a loader, batches are assumed to be equal
        return rows.of_rank * self.world_size / rows.of_group if rows.of_group else 0.0

    def _weighted(
        self, rows: RowCounts | None, weight: float | None, ends_group: bool
    ) -> LossFactors:
        if weight is None:
            own: float = rows.of_rank if rows is not None else 1
            if self._known is not None:
                self._known += rows.of_batch if rows is not None else self.world_size
        else:
            own, self._known = weight, None
        self._own += own
        if not ends_group:
            # Divide by a number of the right magnitude for now, so that float16 does not overflow.
            self._unit = self._unit or self._size(own, rows, weight) or 1.0
            return LossFactors(own * self.world_size / self._unit, ends_group=False)
        total = self.total(self._own) if self._known is None else self._known
        if not total:
            return LossFactors(0.0, True, 0.0 if self._unit else 1.0)
        return LossFactors(
            own * self.world_size / total, True, self._unit / total if self._unit else 1.0
        )

    def _size(self, own: float, rows: RowCounts | None, weight: float | None) -> float:
        """Return how much a group's first batch counts, the same number on all ranks.

        Gradients may be averaged over ranks before the group is complete: shards always are, and
        DDP averages in the backward after any forward that was meant for the group's end, such as
        an evaluation with autograd.
        """
        if weight is not None:
            return self.total(own)
        return own if rows is None else rows.of_batch


def _refusal(name: str, what: str, fix: str) -> UsageError:
    return UsageError.of(name, what, where="session.backward(loss, weight)", fix=fix)


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
ACCUMULATES = "torch::autograd::AccumulateGrad"


def function_that_sums(loss: torch.Tensor, num_rows: int) -> str:
    """Return the operation that makes a loss, or a summand of it, a sum over this rank's rows.

    It is source text; empty if a sum is not proven. The loss has the shape ``[]``.
    """
    return next(
        filter(None, (_function_of(node, num_rows) for node in nodes_of(loss, only_summands=True))),
        "",
    )


def other_than_rows(loss: torch.Tensor, num_rows: int) -> str:
    """Return what a loss, or a summand of it, averages over if that differs from row to row.

    It is a clause for a message; empty if the loss, of shape ``[]``, is not proven to average over
    something else.
    """
    return next(
        filter(None, (_counted_by(node, num_rows) for node in nodes_of(loss, only_summands=True))),
        "",
    )


def nodes_of(loss: torch.Tensor, *, only_summands: bool = False) -> Iterator[Any]:
    """Yield the autograd nodes of a loss, or only those whose values are added up to it."""
    visited: set[Any] = set()
    pending: list[Any] = [loss.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        if not only_summands or node.name() in _TRANSPARENT:
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
    return any(
        inner is not None and inner.name() == ACCUMULATES for inner, _ in node.next_functions
    )


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
