"""How long ranks work before they meet in the exchange, and how long the slowest of N. Pure.

Ranks wait for the slowest of them in every step, so what counts is the mean of the maximum of N
draws, and not the mean. What differs between ranks in one step makes the maximum grow; what all
ranks have in common does not: a slow stretch of the machine (a block's mean), or a long batch that
all ranks get together (the correlation of ranks within a step). A rank that is always slower is one
of the draws.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Above this share of the values, the distribution is continued exponentially: N draws from a
# sample would never exceed its maximum, however large N is.
_TAIL_SHARE = 0.1
_LEAST_TAIL = 5
_NODES = [(number + 0.5) / 64 for number in range(64)]


@dataclass(frozen=True)
class OwnWork:
    """The distribution of a rank's own work in a step: everything before the exchange.

    Attributes:
        mean_s: Mean over ranks and steps, in seconds.
        deviations_s: Deviations from the mean of those parts that differ between ranks, sorted.
        tail_s: Mean excess of the upper tail, in seconds; 0 with too few values.
    """

    mean_s: float
    deviations_s: tuple[float, ...]
    tail_s: float

    def longest_s(self, world: int) -> float:
        """Return the mean time of the slowest of ``world`` ranks."""
        return self.mean_s + self._mean_of_maximum(world) - self._mean_of_maximum(1)

    def scaled(self, factor: float) -> OwnWork:
        """Return the distribution with everything ``factor`` times as long."""
        return OwnWork(
            self.mean_s * factor,
            tuple(deviation * factor for deviation in self.deviations_s),
            self.tail_s * factor,
        )

    def with_mean(self, mean_s: float) -> OwnWork:
        """Return the distribution around another mean."""
        return replace(self, mean_s=mean_s)

    def _mean_of_maximum(self, world: int) -> float:
        # The maximum of N draws is the quantile at u^(1/N), with u uniform in (0, 1).
        return math.fsum(self._quantile(node ** (1 / world)) for node in _NODES) / len(_NODES)

    def _quantile(self, share: float) -> float:
        values, count = self.deviations_s, len(self.deviations_s)
        tail_count = _tail_count(count)
        over = (1 - share) * count
        if self.tail_s and over < tail_count:
            return _tail_begin(values) + self.tail_s * math.log(tail_count / over)
        place = share * count - 0.5
        low = min(max(int(place), 0), count - 1)
        high = min(low + 1, count - 1)
        weight = min(max(place - low, 0.0), 1.0)
        return values[low] * (1 - weight) + values[high] * weight


def _tail_count(count: int) -> int:
    return max(_LEAST_TAIL, int(count * _TAIL_SHARE))


def _tail_begin(ordered: Sequence[float]) -> float:
    place = len(ordered) - _tail_count(len(ordered))
    return (ordered[place - 1] + ordered[place]) / 2


def distribution(mean_s: float, deviations_s: Sequence[float], tail_factor: float) -> OwnWork:
    """Return the distribution of these deviations.

    Args:
        mean_s: Its mean.
        deviations_s: Deviations in any order.
        tail_factor: By how much the tail is stretched: 1 as the sample suggests, 0 for none.
    """
    ordered = sorted(deviations_s)
    count = _tail_count(len(ordered))
    if len(ordered) < 2 * count:
        return OwnWork(mean_s, tuple(ordered), 0.0)
    begin = _tail_begin(ordered)
    tail_s = statistics.fmean(value - begin for value in ordered[-count:])
    return OwnWork(mean_s, tuple(ordered), tail_s * tail_factor)


@dataclass(frozen=True)
class Spread:
    """How the own work of ranks varies.

    Attributes:
        persistent_s: Deviation of each rank from the mean of all ranks, over all steps.
        passing_s: What is left of each rank and step, without the rank's mean in its round.
        shared: Share of the variance of ``passing_s`` that all ranks have in common, 0 to 1.
        shared_error: Standard error of ``shared``.
    """

    persistent_s: tuple[float, ...]
    passing_s: tuple[tuple[float, ...], ...]
    shared: float
    shared_error: float

    def deviations_s(self, shared: float) -> list[float]:
        """Return deviations that differ between ranks, for a share that they have in common."""
        factor = math.sqrt(1 - min(max(shared, 0.0), 1.0))
        return [
            offset + factor * value
            for step in self.passing_s
            for offset, value in zip(self.persistent_s, step, strict=True)
        ]


def spread(rounds: Sequence[Sequence[Sequence[float]]]) -> Spread:
    """Take the variation of own work apart.

    Args:
        rounds: Seconds by round, step and rank; two or more steps in each round.
    """
    ranks = range(len(rounds[0][0]))
    round_means = [[statistics.fmean(s[rank] for s in steps) for rank in ranks] for steps in rounds]
    rank_means = [statistics.fmean(means[rank] for means in round_means) for rank in ranks]
    mean = statistics.fmean(rank_means)
    passing = []
    for steps, means in zip(rounds, round_means, strict=True):
        # Deviations from a mean of n values are too small by this factor (Bessel's correction).
        factor = math.sqrt(len(steps) / (len(steps) - 1))
        passing += [tuple(factor * (step[rank] - means[rank]) for rank in ranks) for step in steps]
    shared = _shared(passing)
    error = (1 - shared) / math.sqrt(len(passing)) if len(ranks) > 1 else 0.0
    return Spread(tuple(value - mean for value in rank_means), tuple(passing), shared, error)


def _shared(steps: Sequence[Sequence[float]]) -> float:
    """Return the intraclass correlation of ranks within a step (Fisher 1925); 0 for one rank."""
    ranks = len(steps[0])
    variance = statistics.fmean(value * value for step in steps for value in step)
    if ranks == 1 or not variance:
        return 0.0
    of_means = statistics.fmean(statistics.fmean(step) ** 2 for step in steps)
    return max(0.0, (ranks * of_means / variance - 1) / (ranks - 1))
