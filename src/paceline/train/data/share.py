"""Decide which rank gets which sample: pure functions of length, batch size, rank and world size.

An epoch is an order of samples, a global batch is a span of that order, and a rank's share is a
span of the batch. So the number of ranks never changes what a step sees. With gradient
accumulation, several batches make a group.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LAST = ("exact", "drop")


class Rows(NamedTuple):
    """Numbers of samples in a batch."""

    of_rank: int  # samples of this rank; may be 0
    of_batch: int  # samples in the global batch
    # samples in the whole group of accumulated batches; None if only known at its end
    of_group: int | None = None
    ends_group: bool = True  # whether the optimizer steps after this batch
    borrowed: int = 1  # samples of other ranks that were read because this rank has none


def share(num_rows: int, *, rank: int, world_size: int) -> range:
    """Return which rows of a batch a rank gets.

    Shares are contiguous and in the order of ranks; sizes differ by at most one, larger ones first.
    """
    size, extra = divmod(num_rows, world_size)
    start = rank * size + min(rank, extra)
    return range(start, start + size + (rank < extra))


@dataclass(frozen=True)
class EvenBatches:
    """Batches of one size, except the last."""

    length: int  # number of samples in the epoch
    batch_size: int  # samples in a global batch
    last: str = "exact"  # ``"exact"`` keeps a shorter last batch, ``"drop"`` leaves it out
    start: int = 0  # samples of the epoch that were served before, at any batch size

    def __len__(self) -> int:
        remaining = max(0, self.length - self.start)
        num_whole, rest = divmod(remaining, self.batch_size)
        return num_whole + (rest > 0 and self.last == "exact")

    def span(self, batch: int) -> range:
        """Return the positions of a batch."""
        first = self.start + batch * self.batch_size
        return range(first, min(first + self.batch_size, self.length))


@dataclass(frozen=True)
class GivenBatches:
    """Consecutive batches of any sizes."""

    bounds: Sequence[int]  # first position of each batch, and then the end of the last batch

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def span(self, batch: int) -> range:
        """Return the positions of a batch."""
        return range(self.bounds[batch], self.bounds[batch + 1])


@dataclass(frozen=True)
class Shard:
    """One rank's part in the batches of an epoch."""

    batches: EvenBatches | GivenBatches  # the global batches
    rank: int  # global rank
    world_size: int  # number of ranks
    accumulate: int = 1  # batches in a group; the last group may have fewer

    @property
    def num_batches(self) -> int:
        """Number of batches, the same on all ranks."""
        return len(self.batches)

    def positions(self, batch: int) -> range:
        """Return the positions of this rank's share of a batch; may be empty."""
        return self.positions_of(batch, self.rank)

    def positions_of(self, batch: int, rank: int) -> range:
        """Return the positions of any rank's share of a batch."""
        span = self.batches.span(batch)
        rows = share(len(span), rank=rank, world_size=self.world_size)
        return range(span.start + rows.start, span.start + rows.stop)

    def read(self) -> Iterator[range]:
        """Yield the positions to read for each batch: the share, or the first row if that is empty.

        A rank without a sample needs one to derive the structure of its empty batch.
        """
        batches, number = self.batches, self.num_batches
        num_alike = max(0, number - 1) if isinstance(batches, EvenBatches) else 0
        if num_alike and isinstance(batches, EvenBatches):  # iterators, so that a step only adds
            mine = self.positions(0) or batches.span(0)[:1]
            first, stop, size = mine.start, mine.stop, batches.batch_size
            yield from map(
                range, range(first, first + num_alike * size, size), itertools.count(stop, size)
            )
        for batch in range(num_alike, number):
            yield self.positions(batch) or batches.span(batch)[:1]

    def rows(self) -> Iterator[Rows]:
        """Yield the numbers of samples of each batch, in order."""
        number, size = self.num_batches, self.accumulate
        num_alike = max(0, number - 1) // size if isinstance(self.batches, EvenBatches) else 0
        if num_alike:
            yield from itertools.chain.from_iterable(itertools.repeat(self._group(0), num_alike))
        for first in range(num_alike * size, number, size):
            yield from self._group(first)

    def _group(self, first: int) -> list[Rows]:
        batches = range(first, min(first + self.accumulate, self.num_batches))
        sizes = [len(self.batches.span(batch)) for batch in batches]
        return [
            Rows(len(self.positions(batch)), of_batch, sum(sizes), batch == batches[-1])
            for batch, of_batch in zip(batches, sizes, strict=True)
        ]


def in_order(spans: Sequence[Sequence[range]]) -> list[int]:
    """Return the indices that sort concatenated rows of all ranks by position.

    ``spans`` has, for each rank, the positions of its shares in the order in which it collected
    them.
    """
    positions = [position for of_rank in spans for span in of_rank for position in span]
    return sorted(range(len(positions)), key=positions.__getitem__)
