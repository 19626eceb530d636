"""Random numbers of many samples at once: each sample's are a function of a key and its index.

They are counted, not drawn in sequence: number n of a sample is computed from key, index and n. So
they depend neither on the batch that the sample is in nor on the rank that loads it, and a batch
costs some array operations instead of a seeded generator for each sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

# Constants of SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
# OOPSLA 2014. Its sequence is the mixed multiples of the first constant, so it can be counted.
GAMMA = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)

_BLOCK = 1 << 15  # numbers computed at once, which stay in the cache: a third of the time
_FLOAT32_BITS = np.uint64(24)  # of a fraction: all multiples of 2**-24 below 1 are exact


class SampleRandom:
    """Random numbers for the samples of a batch, as tensors with a row for each sample.

    Each call takes the next numbers of every sample's own sequence. A transform that draws the same
    calls in the same order gets the same numbers for a sample, in any batch.

    Args:
        indices: Indices of the samples, integers of shape ``[batch]``.
        key: Number that all samples share; from the seed and the epoch.
        device: Device of the returned tensors.
    """

    def __init__(
        self, indices: Sequence[int] | np.ndarray, key: int, device: torch.device | str = "cpu"
    ) -> None:
        numbers = np.asarray(indices, dtype=np.int64).astype(np.uint64)
        self._states = mixed_numbers(key, numbers)
        self._num_drawn = 0
        self._device = torch.device(device)

    def __len__(self) -> int:
        """Number of samples in the batch."""
        return len(self._states)

    def uniform(
        self, low: float = 0.0, high: float = 1.0, *, shape: Sequence[int] = ()
    ) -> torch.Tensor:
        """Return float32 numbers in ``[low, high)``, of shape ``[batch, *shape]``.

        If ``high - low`` is not a power of two, rounding can return ``high``.
        """
        return low + (high - low) * self._on_device(self._fractions(shape))

    def integers(self, low: int, high: int, *, shape: Sequence[int] = ()) -> torch.Tensor:
        """Return int64 numbers from ``low`` to ``high - 1``, of shape ``[batch, *shape]``.

        Their number is at most 2**32. Their probabilities differ by less than 2**-32.

        Raises:
            ValueError: The range is empty, or has more than 2**32 numbers.
        """
        count = high - low
        if not 0 < count <= 1 << 32:
            raise ValueError(f"integers({low}, {high}) has {count} numbers to choose from")
        # The high half of a product, as in Lemire, "Fast random integer generation in an interval",
        # 2019, without its rejection.
        numbers = ((self._bits(shape) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)
        return self._on_device(numbers.astype(np.int64) + low)

    def chance(self, probability: float, *, shape: Sequence[int] = ()) -> torch.Tensor:
        """Return booleans that are True with a probability, of shape ``[batch, *shape]``."""
        return self._on_device(self._fractions(shape) < probability)

    def normal(self, *, shape: Sequence[int] = ()) -> torch.Tensor:
        """Return float32 numbers of the standard normal distribution, shape ``[batch, *shape]``.

        They are computed by the transform of Box and Muller, 1958.
        """
        radius = np.sqrt(-2.0 * np.log1p(-self._fractions(shape).astype(np.float64)))
        angle = 2.0 * math.pi * self._fractions(shape).astype(np.float64)
        return self._on_device((radius * np.cos(angle)).astype(np.float32))

    def _fractions(self, shape: Sequence[int]) -> np.ndarray:
        """Return float32 multiples of 2**-24 in ``[0, 1)``."""
        numbers = self._bits(shape) >> (np.uint64(64) - _FLOAT32_BITS)
        fractions: np.ndarray = numbers.astype(np.float32) * np.float32(2.0**-24)
        return fractions

    def _bits(self, shape: Sequence[int]) -> np.ndarray:
        """Return the next numbers of 64 bits of each sample, of shape ``[batch, *shape]``."""
        count = math.prod(shape)
        first = self._num_drawn + 1
        self._num_drawn += count
        bits = np.concatenate(list(counted_bits(self._states, first, count)))
        return bits.reshape(len(self._states), *shape)

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


def mixed_numbers(key: int, numbers: np.ndarray) -> np.ndarray:
    """Return a random number of 64 bits for each of some numbers, a function of it and a key.

    Of a longer key, the lowest 64 bits count. ``numbers`` is a uint64 array; different numbers have
    different results.
    """
    start = np.uint64(key & 0xFFFFFFFFFFFFFFFF)
    return _mixed(start + GAMMA * (numbers + np.uint64(1)))


def counted_bits(states: np.ndarray, first: int, count: int) -> Iterator[np.ndarray]:
    """Yield random numbers of 64 bits, ``first`` to ``first + count - 1`` of each state.

    ``states`` is a uint64 array of shape ``[rows]``, from ``mixed_numbers``; places count from 1.
    For some of the rows at a time, it yields a new uint64 array of shape ``[some, count]``.
    """
    steps = GAMMA * np.arange(first, first + count, dtype=np.uint64)
    size = max(1, _BLOCK // max(1, count))
    for start in range(0, max(1, len(states)), size):
        yield _mixed(states[start : start + size, None] + steps)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return the finalizer of SplitMix64, in place; arrays of uint64 wrap, as it needs."""
    for shift, factor in zip(SHIFTS, (*FACTORS, np.uint64(1)), strict=True):
        np.bitwise_xor(numbers, numbers >> shift, out=numbers)
        np.multiply(numbers, factor, out=numbers)
    return numbers
