"""Decide how fast a script is on each number of ranks: samples/s, speed-up, efficiency. Pure.

Throughput is the median over windows of ``WINDOW`` consecutive steps, and not over steps: the
workers of a DataLoader deliver batches in bursts, so that most steps may be fast although data are
the bottleneck.
The bootstrap draws rounds first and windows second (``measure.intervals``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.launch.monitor import stage_times, step_parts
from paceline.launch.monitor.stage_times import StepTime
from paceline.launch.monitor.timed_steps import Durations
from paceline.measure import intervals
from paceline.measure.bench_file import BenchFile, Round, WorldBench
from paceline.measure.intervals import Blocks, Interval

WINDOW = 8


@dataclass(frozen=True)
class WorldFigures:
    """How fast one number of ranks is."""

    num_ranks: int  # number of ranks
    samples_per_step: int  # samples of a step over all ranks; 0 if unknown
    step_s: Interval  # seconds of a step
    # samples per second over all ranks; None if the batch is unknown
    samples_per_s: Interval | None
    speedup: Interval  # samples per second as a multiple of those of the smallest number of ranks
    efficiency: Interval  # ``speedup`` divided by the multiple of ranks; 1 is ideal
    # seconds of a step by part: data, compute, other code, communication, waiting. They are means
    # over the steps that took about as long as most.
    parts: Mapping[str, float]
    # the rank that the others wait for, if the evidence suffices: rank, host, stage, seconds; else
    # None
    slow_rank: Mapping[str, Any] | None
    # number of windows that were measured. A single one has no spread, so that its intervals have
    # no width.
    windows: int = 0


def figures(bench: BenchFile) -> list[WorldFigures]:
    """Return the figures of each number of ranks, the smallest first."""
    sizes = sorted(bench.worlds)
    base = sizes[0]
    return [_figures(bench, size, base) for size in sizes]


def _figures(bench: BenchFile, size: int, base: int) -> WorldFigures:
    world, smallest = bench.worlds[size], bench.worlds[base]
    times, base_times = window_times(world.rounds), window_times(smallest.rounds)
    step_time = account(world)
    speedup = _scaled(_ratio(base_times, times), _work(size, world) / _work(base, smallest))
    step_s = intervals.median(times)
    return WorldFigures(
        num_ranks=size,
        samples_per_step=world.samples_per_step,
        step_s=step_s,
        samples_per_s=_rate(world.samples_per_step, step_s),
        speedup=speedup,
        efficiency=_scaled(speedup, base / size),
        parts=parts_of(step_time, step_s.value),
        slow_rank=_slow_rank(step_time, world.hosts),
        windows=len(intervals.flat(times)),
    )


def _work(size: int, world: WorldBench) -> float:
    """Return the work of a step: its samples, or the ranks where batches are unknown."""
    return float(world.samples_per_step or size)


def _ratio(numerator: Blocks, denominator: Blocks) -> Interval:
    """Return the ratio of two medians; exactly 1 for the same measurement."""
    if numerator is denominator or list(numerator) == list(denominator):
        return Interval(1.0, 1.0, 1.0)
    return intervals.ratio(numerator, denominator)


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def _rate(amount: int, seconds: Interval) -> Interval | None:
    """Return an amount per second; None without an amount."""
    if not amount:
        return None
    return Interval(amount / seconds.value, amount / seconds.high, amount / seconds.low)


def window_times(rounds: Sequence[Round]) -> list[list[float]]:
    """Return the mean seconds of a step in windows of consecutive steps, for each round.

    The steps that do not fill the last window are left out; a round of fewer is one window.
    """
    return [_windows([step_seconds(steps[step]) for step in sorted(steps)]) for steps in rounds]


def _windows(times: Sequence[float]) -> list[float]:
    size = min(WINDOW, len(times))
    starts = range(0, len(times) - size + 1, size)
    return [statistics.fmean(times[start : start + size]) for start in starts]


def step_seconds(step: Mapping[int, Durations]) -> float:
    """Return the seconds of a step: the median of the ranks, which leave the exchange together."""
    return statistics.median(sum(durations) for durations in step.values()) * 1e-9


def account(world: WorldBench) -> StepTime | None:
    """Return where the time of a step goes, over all rounds; None with too few steps."""
    return stage_times.account(steps[step] for steps in world.rounds for step in sorted(steps))


def parts_of(step_time: StepTime | None, step_s: float) -> dict[str, float]:
    """Return the seconds of a step by part; all of it is compute if the parts are unknown."""
    if step_time is None:
        return {"compute": step_s}
    return step_parts.coarse(stage_times.describe(step_time, {}), step_time.ranks)


def _slow_rank(step_time: StepTime | None, hosts: Mapping[int, str]) -> Mapping[str, Any] | None:
    suspect = step_time.proven if step_time is not None else None
    if suspect is None:
        return None
    return {
        "rank": suspect.rank,
        "host": hosts.get(suspect.rank, ""),
        "stage": suspect.stage,
        "seconds": suspect.seconds,
    }
