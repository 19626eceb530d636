"""Decide what a bench says about scaling: throughput, speed-up and efficiency by ranks. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from paceline.measure.bench_file import BenchFile, WorldBench
from paceline.measure.report.facts import Scaling, World
from paceline.measure.scaling import WorldFigures, figures


def scaling(bench: BenchFile) -> list[Scaling]:
    """Return the scaling of a bench by number of ranks.

    The figures are those that ``paceline bench`` has printed. Numbers of ranks without steps are
    left out; without a number of samples there is nothing to compare.
    """
    worlds = {size: _without_failures(world) for size, world in bench.worlds.items()}
    measured = {size: world for size, world in worlds.items() if world.rounds}
    if not measured or not all(world.samples_per_step for world in measured.values()):
        return []
    rows = figures(replace(bench, worlds=measured))
    return [row for number in rows if (row := _compared(number, rows[0])) is not None]


def _without_failures(world: WorldBench) -> WorldBench:
    """Leave out the empty rounds of starts that have failed."""
    return replace(world, rounds=[steps for steps in world.rounds if steps])


def _compared(row: WorldFigures, base: WorldFigures) -> Scaling | None:
    if row.samples_per_s is None or base.samples_per_s is None:
        return None
    return Scaling(
        ranks=row.num_ranks,
        step_s=row.step_s,
        samples_per_s=row.samples_per_s,
        ideal_samples_per_s=base.samples_per_s.value * row.num_ranks / base.num_ranks,
        efficiency=row.efficiency,
    )


@dataclass(frozen=True)
class OwnTime:
    """The own work of a rank in a bench: the time of its steps outside the exchange."""

    rank: int  # the rank
    median_s: float  # its median, in seconds
    low_s: float  # the 5 % quantile
    high_s: float  # the 95 % quantile


def own_times(world: World) -> list[OwnTime]:
    """Return how the own work of each rank was spread over the steps of a bench."""
    return [_own_time(rank, times) for rank, times in world.own_s.items() if len(times) > 1]


def _own_time(rank: int, times: tuple[float, ...]) -> OwnTime:
    twentieths = statistics.quantiles(times, n=20, method="inclusive")
    return OwnTime(rank, statistics.median(times), twentieths[0], twentieths[-1])
