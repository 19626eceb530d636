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
from dataclasses import dataclass

# N draws from a sample would never exceed its maximum, however large N is. So the distribution is
# continued exponentially from the largest few values on, with the mean excess of this share.
_TAIL_SHARE = 0.1
_CONTINUED = 5
_NODES = [(number + 0.5) / 64 for number in range(64)]


@dataclass(frozen=True)
class OwnWork:
    """The distribution of a rank's own work in a step: everything before the exchange."""

    mean_s: float  # mean over ranks and steps, in seconds
    differences: Differences  # what differs between ranks

    def longest_s(self, world: int) -> float:
        """Return the mean time of the slowest of ``world`` ranks."""
        return self.mean_s + self.differences.excess_s(world)


class Differences:
    """The distribution of what differs between ranks in a step."""

    def __init__(
        self,
        deviations_s: Sequence[float],  # from the mean, in any order
        # by how much the upper tail is stretched: 1 as in the sample, 0 to end with it
        tail_factor: float,
    ) -> None:
        self._ordered = sorted(deviations_s)
        self._tail_begin_s = self._tail_s = 0.0
        if len(self._ordered) >= 2 * _CONTINUED:
            self._tail_begin_s = self._middle(_CONTINUED)
            self._tail_s = tail_factor * self._mean_excess_s()
        self._means: dict[int, float] = {}

    def excess_s(self, world: int) -> float:
        """Return by how much the slowest of ``world`` ranks takes longer than a rank, on average.

        The tail is exponential with the mean excess of the sample's.
        """
        return self._mean_of_maximum(world) - self._mean_of_maximum(1)

    def _middle(self, above: int) -> float:
        """Return the value that ``above`` values exceed."""
        return (self._ordered[-above - 1] + self._ordered[-above]) / 2

    def _mean_excess_s(self) -> float:
        above = max(_CONTINUED, int(len(self._ordered) * _TAIL_SHARE))
        begin_s = self._middle(above)
        return statistics.fmean(value - begin_s for value in self._ordered[-above:])

    def _mean_of_maximum(self, world: int) -> float:
        # The maximum of N draws is the quantile at u^(1/N), with u uniform in (0, 1).
        if world not in self._means:
            quantiles = [self._quantile(node ** (1 / world)) for node in _NODES]
            self._means[world] = math.fsum(quantiles) / len(_NODES)
        return self._means[world]

    def _quantile(self, share: float) -> float:
        count = len(self._ordered)
        over = (1 - share) * count
        if self._tail_s and over < _CONTINUED:
            return self._tail_begin_s + self._tail_s * math.log(_CONTINUED / over)
        place = min(max(share * count - 0.5, 0.0), count - 1.0)
        low = int(place)
        high = min(low + 1, count - 1)
        weight = place - low
        return self._ordered[low] * (1 - weight) + self._ordered[high] * weight


@dataclass(frozen=True)
class Spread:
    """How the own work of ranks varies."""

    # deviation of each rank from the mean of all ranks, over all steps
    persistent_s: tuple[float, ...]
    # what is left of each rank and step, without the rank's mean in its round
    passing_s: tuple[tuple[float, ...], ...]
    shared: float  # share of the variance of ``passing_s`` that all ranks have in common, 0 to 1
    shared_error: float  # standard error of ``shared``

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

    ``rounds`` are seconds by round, step and rank; two or more steps in each round.
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
