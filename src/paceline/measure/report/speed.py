"""Decide how fast a run was over time, how the time of its steps was split, how it scaled. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paceline.measure.bench_file import BenchFile, WorldFigures, figures
from paceline.measure.report.facts import AttemptFacts, Scaling, SpeedPoint, StepSplit

# The last interval of an attempt is cut short by its end, and contains the end.
_SHORTEST = 0.5


@dataclass(frozen=True)
class Rate:
    """A rate over an interval of the run."""

    attempt: int  # number of the attempt
    elapsed_s: float  # seconds in which the run had run at the interval's end
    steps_per_s: float  # optimizer steps per second
    samples_per_s: float  # samples per second over all ranks; 0 if unknown
    began_s: float = 0.0  # the same as ``elapsed_s``, at the interval's beginning


def elapsed(attempts: Sequence[AttemptFacts], points: Sequence[SpeedPoint]) -> list[float]:
    """Return for each point how long the run had run, without pauses between attempts."""
    before_s: dict[int, float] = {}
    total_s = 0.0
    starts_s = {attempt.number: attempt.start_s for attempt in attempts}
    for attempt in attempts:
        before_s[attempt.number] = total_s
        total_s += attempt.end_s - attempt.start_s
    return [before_s[point.attempt] + point.time_s - starts_s[point.attempt] for point in points]


def rates(attempts: Sequence[AttemptFacts], points: Sequence[SpeedPoint]) -> list[Rate]:
    """Return the rates between consecutive points of the same attempt.

    Intervals of less than half the usual length are left out. The last one of an attempt lasts
    longer than its training: its rate is what the launcher has measured until then.
    """
    times_s = elapsed(attempts, points)
    intervals = [
        (earlier, later, times)
        for (earlier, later), times in zip(pairwise(points), pairwise(times_s), strict=True)
        if earlier.attempt == later.attempt and later.time_s > earlier.time_s
    ]
    if not intervals:
        return []
    last = {point.attempt: point for point in points}
    usual_s = statistics.median(later.time_s - earlier.time_s for earlier, later, _ in intervals)
    return [
        _rate(earlier, later, times, is_last=later is last[later.attempt])
        for earlier, later, times in intervals
        if later.time_s - earlier.time_s >= _SHORTEST * usual_s and later.steps >= earlier.steps
    ]


def _rate(
    earlier: SpeedPoint, later: SpeedPoint, times_s: tuple[float, float], *, is_last: bool
) -> Rate:
    steps_per_s = (later.steps - earlier.steps) / (later.time_s - earlier.time_s)
    if is_last and later.steps_per_s:
        steps_per_s = later.steps_per_s
    samples_per_s = steps_per_s * later.samples_per_step
    return Rate(later.attempt, times_s[1], steps_per_s, samples_per_s, began_s=times_s[0])


def mean_split(points: Sequence[SpeedPoint]) -> StepSplit | None:
    """Return where the time of a step went over the last attempt; None if it was not timed.

    Each point describes the latest steps at its time, and counts for the steps since the one
    before.
    """
    last = max((point.attempt for point in points), default=0)
    timed: list[tuple[StepSplit, int]] = []
    previous_steps = 0
    for point in points:
        # Other attempts may have had other nodes, or ended before the steps were regular.
        if point.attempt == last and point.split is not None and point.steps > previous_steps:
            timed.append((point.split, point.steps - previous_steps))
            previous_steps = point.steps
    if not timed:
        return None
    num_steps = sum(weight for _, weight in timed)
    names = list(timed[-1][0].parts)
    parts = {
        name: sum(split.parts.get(name, 0.0) * weight for split, weight in timed) / num_steps
        for name in names
    }
    return StepSplit(
        seconds=sum(parts.values()),
        parts=parts,
        late_rank=_late_rank([split for split, _ in timed]),
        timed_steps=sum(split.timed_steps for split, _ in timed),
        mean_s=timed[-1][0].mean_s,
        remarks=timed[-1][0].remarks,
    )


def _late_rank(splits: Sequence[StepSplit]) -> str:
    """Return the latest sentence about a late rank, if most splits have one."""
    sentences = [split.late_rank for split in splits if split.late_rank]
    return sentences[-1] if 2 * len(sentences) > len(splits) else ""


def scaling(bench: BenchFile) -> list[Scaling]:
    """Return the scaling of a bench by number of ranks.

    The figures are those that ``paceline bench`` has printed. Numbers of ranks without steps are
    left out; without a number of samples there is nothing to compare.
    """
    worlds = {  # without the empty rounds of starts that have failed
        size: replace(world, rounds=[steps for steps in world.rounds if steps])
        for size, world in bench.worlds.items()
    }
    measured = {size: world for size, world in worlds.items() if world.rounds}
    if not measured or not all(world.samples_per_step for world in measured.values()):
        return []
    rows = figures(replace(bench, worlds=measured))
    return [row for number in rows if (row := _compared(number, rows[0])) is not None]


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
