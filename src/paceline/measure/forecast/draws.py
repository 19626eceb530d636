"""The choices of one draw of the bootstrap. Pure.

What a bench does not determine, such as the share of latency in a single measured exchange, is
drawn from its plausible range, so that it widens the interval.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

_MOST_DEVIATIONS = 400  # in one draw


class Draw:
    """Choices of one draw of the bootstrap; of the estimate itself without a generator."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source

    def blocks(self, count: int) -> list[int]:
        """Return numbers of blocks."""
        if self._source is None:
            return list(range(count))
        return self._source.choices(range(count), k=count)

    def within(self, low: float, high: float) -> float:
        """Return a value of a range; its middle for the estimate."""
        return (low + high) / 2 if self._source is None else self._source.uniform(low, high)

    def within_log(self, low: float, high: float) -> float:
        """Return a value of a range whose logarithm is uniform."""
        return math.exp(self.within(math.log(low), math.log(high)))

    def about(self, value: float, error: float) -> float:
        """Return a value with a normally distributed error."""
        return value if self._source is None else self._source.gauss(value, error)

    def deviations(self, values: Sequence[float]) -> Sequence[float]:
        """Return a sample of values."""
        if self._source is None:
            return values
        return self._source.choices(values, k=min(len(values), _MOST_DEVIATIONS))
