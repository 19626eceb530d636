"""Compute the states of a sample's generators: a function of seed, epoch and index.

A state is 624 random words for each of Python's, NumPy's and torch's generator, and for each that
the dataset holds. Word ``k`` of
sample ``i`` is the high half of ``factors[k] * multiplier[i]``, a product modulo 2**64. The factors
are random numbers of the epoch, from SHAKE-128. A multiplier is an index, mixed by SplitMix64. This
is hashing by multiply-shift (Dietzfelbinger et al., "A reliable randomized algorithm for the
closest-pair problem", Journal of Algorithms 25, 1997).

Both are odd, so multiplying by either one permutes the odd numbers. Therefore the words of one
sample are as random as the output of SHAKE, and word ``k`` of all samples as random as that of
SplitMix64. The low half would be weak: its last bit is always 1. ``test_sample_states.py`` tests
both.

One product a word takes 0.5 µs for a generator and sample in a tight loop. SplitMix64 for each word
would take three times as long.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paceline.train.data.counter_random import mixed_numbers
from paceline.train.data.generators import NAMES
from paceline.train.data.order import derive
from paceline.train.data.twisters import ROWS, WORDS, Twister, twister_of

_HALF = np.uint64(32)
_MASK = (1 << 64) - 1


class SampleStates:
    """Sets the global generators, and those of a dataset, before each sample of a batch."""

    def __init__(self, seed: int, held: Sequence[Twister] = ()) -> None:
        self._seed = seed
        self._epoch: int | None = None  # of which key and factors are
        self._key = 0
        self._factors = np.empty(0, dtype=np.uint64)
        # Allocated once: memory of this size is new at each allocation, and slow to write at first.
        self._products = np.empty((ROWS, WORDS), dtype=np.uint64)
        # Not shared with other loaders: a dataset may read another loader for a sample.
        self._twisters = {f"held {number}": twister for number, twister in enumerate(held)}
        # names of the dataset's generators, for before_each
        self.names_of_held = tuple(self._twisters)
        self._rows = {name: row for row, name in enumerate((*NAMES, *self.names_of_held))}

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what refers to memory of this process."""
        return SampleStates, (self._seed,)

    def before_each(
        self, epoch: int, indices: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Any]:
        """Yield each index, with the generators in its state.

        Indices are ints, or keys whose text is the same in each process. ``names`` are of ``NAMES``
        or ``names_of_held``. The state of one generator does not depend on the others.
        """
        if epoch != self._epoch:
            self._begin(epoch)
        for name in names:
            if name not in self._twisters:
                self._twisters[name] = twister_of(name)
        uses = [self._twisters[name].use for name in names]
        multipliers = mixed_numbers(self._key, _numbers_of(indices)) | np.uint64(1)
        for start in range(0, len(indices), ROWS):
            self._write_words(names, multipliers[start : start + ROWS, None])
            for row, index in enumerate(indices[start : start + ROWS]):
                for use in uses:
                    use(row)
                yield index

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._key = derive("sample", self._seed, epoch)
        source = hashlib.shake_128(f"words {self._seed} {epoch}".encode())
        stream = source.digest(len(self._rows) * WORDS * 8)
        factors = np.frombuffer(stream, dtype="<u8").astype(np.uint64) | np.uint64(1)
        self._factors = factors.reshape(len(self._rows), WORDS)

    def _write_words(self, names: Sequence[str], multipliers: np.ndarray) -> None:
        for name in names:
            words = self._twisters[name].words[: len(multipliers)]
            products = self._products[: len(multipliers), : words.shape[1]]
            factors = self._factors[self._rows[name], : words.shape[1]]
            np.multiply(factors, multipliers, out=products)
            np.right_shift(products, _HALF, out=products)
            words[:] = products


def _numbers_of(indices: Sequence[Any]) -> np.ndarray:
    """Return a number of 64 bits for each index, as uint64."""
    try:
        return np.array(list(map(operator.index, indices)), dtype=np.int64).astype(np.uint64)
    except (TypeError, OverflowError):
        return np.array([_number_of(index) for index in indices], dtype=np.uint64)


def _number_of(index: Any) -> int:
    """Return a number of 64 bits for an index; one of another type than int is hashed."""
    try:
        return operator.index(index) & _MASK
    except TypeError:
        return derive("key", index)
