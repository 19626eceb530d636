"""The order of the samples in an epoch: a function of seed and epoch alone.

Small orders are stored. From ``COUNTED_FROM`` samples on, nothing is stored: a keyed bijection maps
positions to samples, in blocks, so that the start costs nothing and memory does not grow with the
dataset.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import torch

COUNTED_FROM = 1 << 20  # stored, it would take 8 MB and some 20 ms an epoch, both growing
BLOCK = 1 << 16  # positions computed at once: enough to make torch's cost per call small
MAX_SPANS = 1 << 11
_ROUNDS = 4


def derive(*parts: object) -> int:
    """Return a 64-bit seed that depends on ``parts``; similar parts give unrelated seeds."""
    # Hashed, because sums collide: seed 1 in epoch 0 would equal seed 0 in epoch 1.
    digest = hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class EpochOrder(Protocol):
    """The samples of an epoch, by position."""

    def __len__(self) -> int:
        """Number of samples."""

    def take(self, spans: Sequence[range]) -> Iterable[list[int]]:
        """Return the samples at the positions of each span; spans have step 1."""


class StoredOrder:
    """An order in memory: a range, an array, or a list."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def take(self, spans: Sequence[range]) -> Iterable[list[int]]:
        """Return the samples at the positions of each span."""
        return [list(self._order[span.start : span.stop]) for span in spans]


class CountedOrder:
    """A permutation that is computed on demand.

    Positions pass through an xor with a key, and then through rounds of a multiplication by an odd
    key and an xor with their own shift, modulo the next power of two. Each step is a bijection, so
    the whole is one. A result outside of the length passes through again until it is inside (cycle
    walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """

    def __init__(
        self,
        length: int,  # number of samples, at least 1
        *,
        seed: int,
        epoch: int,
    ) -> None:
        self._length = length
        bits = max(2, (length - 1).bit_length())
        # 32 bits if sufficient: processors multiply eight of them at once. Products may wrap,
        # because only their low bits are kept, and those are right.
        self._dtype = torch.int32 if bits < 32 else torch.int64
        self._mask, self._shift = (1 << bits) - 1, (bits + 1) // 2
        keys = [derive("order", seed, epoch, number) for number in range(_ROUNDS + 1)]
        self._factors = [key & 0x3FFFFFFF | 1 for key in keys[1:]]
        self._start = keys[0] & self._mask

    def __len__(self) -> int:
        return self._length

    def take(self, spans: Sequence[range]) -> Iterable[list[int]]:
        """Return the samples at the positions of each span."""
        samples = self._walk(self._positions(spans))
        # Converted one by one, on demand: a block of Python ints would not stay in the cache.
        return map(torch.Tensor.tolist, samples.split([len(span) for span in spans]))

    def _positions(self, spans: Sequence[range]) -> torch.Tensor:
        sizes = {len(span) for span in spans}
        if len(sizes) == 1:  # all batches except the last of an epoch: computed at once
            starts = torch.tensor([span.start for span in spans], dtype=self._dtype)
            return (starts[:, None] + torch.arange(sizes.pop(), dtype=self._dtype)).view(-1)
        return torch.cat([torch.arange(span.start, span.stop, dtype=self._dtype) for span in spans])

    def _walk(self, positions: torch.Tensor) -> torch.Tensor:
        samples = self._mix(positions)
        places = torch.nonzero(samples >= self._length).view(-1)
        while len(places):
            again = self._mix(samples.index_select(0, places))
            samples.index_copy_(0, places, again)
            places = places[again >= self._length]
        return samples

    def _mix(self, numbers: torch.Tensor) -> torch.Tensor:
        numbers.bitwise_xor_(self._start)
        for factor in self._factors:
            numbers.mul_(factor).bitwise_and_(self._mask)
            numbers.bitwise_xor_(numbers >> self._shift)
        return numbers


def shuffled(length: int, *, seed: int, epoch: int) -> EpochOrder:
    """Return the order of an epoch as a permutation of ``0 .. length - 1``."""
    if length >= COUNTED_FROM:
        return CountedOrder(length, seed=seed, epoch=epoch)
    return StoredOrder(epoch_order(length, seed=seed, epoch=epoch))


def epoch_order(length: int, *, seed: int, epoch: int) -> array[int]:
    """Return a stored permutation of ``0 .. length - 1``, 8 bytes a sample.

    Not a tensor, because slices become lists of indices at every step, which is ten times as slow
    for a tensor.
    """
    generator = torch.Generator().manual_seed(derive("order", seed, epoch))
    order = array("q", [0]) * length
    if length:  # torch writes into the array's memory, and refuses an empty one
        torch.randperm(length, generator=generator, out=torch.frombuffer(order, dtype=torch.int64))
    return order


def blocks(order: EpochOrder, spans: Iterator[range]) -> Iterator[list[int]]:
    """Yield the samples of each span, a range of positions, computed for many spans at once."""
    first = next(spans, None)
    if first is None:
        return
    num_spans = min(MAX_SPANS, max(1, BLOCK // max(1, len(first))))
    spans = itertools.chain([first], spans)
    while some := list(itertools.islice(spans, num_spans)):
        yield from order.take(some)
