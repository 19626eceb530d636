"""Decide how much a loss counts in a step: by share of the batch, accumulated batches or weight.

A step's gradient is that of the mean over all samples of its group, on any number of ranks. DDP and
fsdp average over ranks, so a rank's loss, itself a mean over its rows, counts with
``rows x ranks / samples of the group``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from paceline.errors import UsageError


class Rows(Protocol):
    """Numbers of samples, as a loader counts them."""

    @property
    def of_rank(self) -> int: ...
    @property
    def of_batch(self) -> int: ...
    @property
    def of_group(self) -> int | None: ...
    @property
    def ends_group(self) -> bool: ...


class Part(NamedTuple):
    """The factors of one backward."""

    factor: float  # factor of the loss's gradient
    ends_group: bool  # whether the optimizer steps after this backward
    # factor of the gradients of the group's earlier batches, applied before this backward; usually
    # 1
    rescale: float = 1.0


@dataclass
class Group:
    """The batches since the last step."""

    world_size: int  # number of ranks
    accumulate: int  # batches in a group, used where no loader determines its end
    total: Callable[[float], float]  # returns the sum of a weight over all ranks; a collective
    num_batches: int = 0  # backwards since the last step
    _own: float = 0.0  # sum of this rank's weights so far
    _known: float | None = 0.0  # sum over all ranks; None if a loss had a weight from the user
    _unit: float = 0.0  # divisor of the earlier batches, while the total is unknown

    def add(self, rows: Rows | None, weight: float | None, *, again: bool = False) -> Part:
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
            part = Part(self._share(rows), ends_group)
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

    def _share(self, rows: Rows | None) -> float:
        if rows is None:
            return 1 / self.accumulate  # without a loader, batches are assumed to be equal
        return rows.of_rank * self.world_size / rows.of_group if rows.of_group else 0.0

    def _weighted(self, rows: Rows | None, weight: float | None, ends_group: bool) -> Part:
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
            return Part(own * self.world_size / self._unit, ends_group=False)
        total = self.total(self._own) if self._known is None else self._known
        if not total:
            return Part(0.0, True, 0.0 if self._unit else 1.0)
        return Part(own * self.world_size / total, True, self._unit / total if self._unit else 1.0)

    def _size(self, own: float, rows: Rows | None, weight: float | None) -> float:
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
