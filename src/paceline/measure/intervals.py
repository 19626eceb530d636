"""Decide the interval of a measured figure: medians, by the bootstrap. Pure; standard library only.

Steps of one block of a measurement resemble each other more than steps of different blocks, so the
bootstrap draws blocks first and steps within them second (a hierarchical bootstrap: Davison and
Hinkley, Bootstrap Methods and their Application, 1997, section 3.8).
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DRAWS = 1000
CONFIDENCE = 0.95
_SEED = 0  # the same measurement gives the same interval

Blocks = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds it with ``CONFIDENCE``."""

    value: float  # the estimate
    low: float  # lower end
    high: float  # upper end

    @property
    def half_width(self) -> float:
        """Half of the interval's length as a share of the estimate; 0 for an estimate of 0."""
        return (self.high - self.low) / 2 / abs(self.value) if self.value else 0.0


def median(blocks: Blocks) -> Interval:
    """Return the median of all values, and its interval."""
    return bootstrap(lambda drawn: statistics.median(flat(drawn[0])), [blocks])


def ratio(numerator: Blocks, denominator: Blocks) -> Interval:
    """Return the ratio of two medians, and its interval."""
    return bootstrap(
        lambda drawn: statistics.median(flat(drawn[0])) / statistics.median(flat(drawn[1])),
        [numerator, denominator],
    )


def bootstrap(estimate: Callable[[list[Blocks]], float], samples: Sequence[Blocks]) -> Interval:
    """Return an estimate from several samples, and its interval.

    Samples are lists of blocks of values. Raises ValueError if one has no values.
    """
    if not all(flat(blocks) for blocks in samples):
        raise ValueError("a sample has no values")
    source = random.Random(_SEED)
    values = sorted(estimate([_draw(blocks, source) for blocks in samples]) for _ in range(DRAWS))
    tail = (1 - CONFIDENCE) / 2
    return Interval(
        value=estimate(list(samples)),
        low=values[int(tail * (DRAWS - 1))],
        high=values[round((1 - tail) * (DRAWS - 1))],
    )


def flat(blocks: Blocks) -> list[float]:
    """Return the values of all blocks."""
    return [value for block in blocks for value in block]


def _draw(blocks: Blocks, source: random.Random) -> Blocks:
    return [source.choices(block, k=len(block)) for block in source.choices(blocks, k=len(blocks))]
