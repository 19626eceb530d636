"""How much a loss counts in a step: shares of batches, groups of accumulated batches, weights of the user's own.

A step's gradient is that of the mean over all samples of its group, on any number of ranks. DDP and fsdp average over
ranks, so a rank's loss, itself a mean over its rows, counts with ``rows x ranks / samples of the group``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from paceline.errors import Finding, UsageError


class Rows(Protocol):
    """Numbers of samples, as a loader knows them."""

    @property
    def of_rank(self) -> int: ...
    @property
    def of_batch(self) -> int: ...
    @property
    def of_group(self) -> int | None: ...
    @property
    def ends_group(self) -> bool: ...


class Part(NamedTuple):
    """What to do in one backward.

    Attributes:
        factor: What the gradient of the loss is multiplied by.
        ends_group: Whether the optimizer steps after it.
        rescale: What gradients of earlier batches of the group are multiplied by first; 1 in most cases.
    """

    factor: float
    ends_group: bool
    rescale: float = 1.0


@dataclass
class Group:
    """The batches since the last step.

    Attributes:
        world_size: Number of ranks.
        accumulate: Batches of a group where no loader tells.
        total: Returns the sum of a weight over all ranks; a collective.
        num_batches: Backwards since the last step.
    """

    world_size: int
    accumulate: int
    total: Callable[[float], float]
    num_batches: int = 0
    _own: float = 0.0  # weights of this rank so far
    _known: float | None = 0.0  # of all ranks, as long as loaders tell
    _unit: float = 0.0  # what earlier batches were divided by, before the total is known

    def add(self, rows: Rows | None, weight: float | None, *, again: bool = False) -> Part:
        """Return what to do for one more loss.

        Args:
            rows: Those of its batch; None without a loader.
            weight: Given by the user instead: of this rank's loss, in any unit.
            again: Whether it is a second loss of the same batch.

        Raises:
            UsageError: A second loss, in a group whose total only its end can tell: the two would be mixed up. Or a
                weight that is negative or not finite.
        """
        if weight is not None and not 0 <= weight < math.inf:
            raise _refusal("option-invalid", f"weight={weight} is not a number from 0 on", "weight=number_of_tokens")
        ends_group = self.num_batches + 1 >= self.accumulate if rows is None else rows.ends_group
        if weight is None and not self._unit and (rows is None or rows.of_group is not None):
            part = Part(self._share(rows), ends_group)
        elif again and self.accumulate > 1:
            raise _refusal(
                "batch-weight-unknown",
                "a second loss of one batch, inside a group of accumulated batches whose size only its end tells",
                "add the losses up: session.backward(first + second, weight=n), or Session(accumulate=1)",
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
            return 1 / self.accumulate  # equal parts, as far as anybody knows
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
            # Divided by something of the right size for now, so that float16 does not overflow.
            self._unit = self._unit or self._size(own, rows, weight) or 1.0
            return Part(own * self.world_size / self._unit, ends_group=False)
        total = self.total(self._own) if self._known is None else self._known
        if not total:
            return Part(0.0, True, 0.0 if self._unit else 1.0)
        return Part(own * self.world_size / total, True, self._unit / total if self._unit else 1.0)

    def _size(self, own: float, rows: Rows | None, weight: float | None) -> float:
        """Return how much a group's first batch counts, the same on all ranks.

        Their gradients may be averaged before the group is complete: shards always are, and DDP does so in the backward
        after any forward that was meant for the group's end, as of an evaluation with autograd.
        """
        if weight is not None:
            return self.total(own)
        return own if rows is None else rows.of_batch


def _refusal(name: str, what: str, fix: str) -> UsageError:
    return UsageError(Finding(name, what, where="session.backward(loss, weight)", fix=fix))
