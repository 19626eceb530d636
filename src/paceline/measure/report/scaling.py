"""Decide what a bench says about scaling: throughput, speed-up and efficiency by ranks. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from paceline.measure import intervals
from paceline.measure.intervals import Blocks, Interval
from paceline.measure.report.facts import Bench, Scaling, World


def scaling(bench: Bench) -> list[Scaling]:
    """Return the scaling of a bench by number of ranks; worlds without steps are left out."""
    worlds = [world for world in bench.worlds if intervals.flat(world.step_s)]
    return [_of_world(world, worlds[0]) for world in worlds]


def _of_world(world: World, base: World) -> Scaling:
    # A trial that failed leaves an empty round.
    steps = [block for block in world.step_s if block]
    base_steps = [block for block in base.step_s if block]
    step_s = intervals.median(steps)
    samples_per_s = _inverse(step_s, world.samples_per_step)
    growth = world.ranks / base.ranks
    ideal = base.samples_per_step / intervals.median(base_steps).value * growth
    # samples/s of this world over those of the ideal; the numbers of samples are exact.
    factor = world.samples_per_step / (base.samples_per_step * growth)
    return Scaling(
        ranks=world.ranks,
        step_s=step_s,
        samples_per_s=samples_per_s,
        ideal_samples_per_s=ideal,
        efficiency=_efficiency(base_steps, steps, factor, is_base=world is base),
    )


def _efficiency(base: Blocks, steps: Blocks, factor: float, *, is_base: bool) -> Interval:
    if is_base:  # by definition
        return Interval(1.0, 1.0, 1.0)
    ratio = intervals.ratio(base, steps)
    return Interval(ratio.value * factor, ratio.low * factor, ratio.high * factor)


def _inverse(step_s: Interval, samples: float) -> Interval:
    return Interval(samples / step_s.value, samples / step_s.high, samples / step_s.low)


@dataclass(frozen=True)
class OwnTime:
    """The own work of a rank in a bench: the time of its steps outside the exchange.

    Attributes:
        rank: The rank.
        median_s: Its median, in seconds.
        low_s: The 5 % quantile.
        high_s: The 95 % quantile.
    """

    rank: int
    median_s: float
    low_s: float
    high_s: float


def own_times(world: World) -> list[OwnTime]:
    """Return how the own work of each rank was spread over the steps of a bench."""
    return [_own_time(rank, times) for rank, times in world.own_s.items() if len(times) > 1]


def _own_time(rank: int, times: tuple[float, ...]) -> OwnTime:
    twentieths = statistics.quantiles(times, n=20, method="inclusive")
    return OwnTime(rank, statistics.median(times), twentieths[0], twentieths[-1])
