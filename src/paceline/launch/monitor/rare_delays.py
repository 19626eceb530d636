"""Find the time that the usual step leaves out: steps that take longer than most, and whose. Pure.

``stage_times`` describes the usual step. A checkpoint every ten steps, an evaluation, a DataLoader
that stalls now and then are not in it, and may take most of a run's time.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations_with_replacement, pairwise
from typing import Any

from paceline.launch.monitor import stage_times
from paceline.launch.monitor.stage_times import (
    STAGES,
    Step,
    StepTime,
    are_synchronised,
    excesses,
)

# A step is long if it takes longer than the median by this share of it, and by this many median
# absolute deviations: the noise of a busy machine is less.
_LONGER_SHARE, _LONGER_DEVIATIONS = 0.2, 8.0
_LEAST_TIMES = 3  # fewer long steps may be the start of the run
_LEAST_SHARE = 0.05  # of the time of all steps; less is not worth a line
# A rank, or all ranks alike, that explain this share of what a step takes longer are its cause.
_EXPLAINED = 0.6
# A rank is named if its long steps come regularly, or if they are so many, and take this many times
# as long in total as those of any other rank: storage that stalls meets one rank and then another.
_LEAST_IRREGULAR, _TIMES_OTHERS = 7, 6.0
_MOST_DISTANCES = 16  # between long steps that are tried as intervals
# Share of the steps at multiples of an interval that are long, and of long steps that are there.
_REGULAR = 0.8


@dataclass(frozen=True)
class RareDelay:
    """What makes some steps longer than the usual one."""

    rank: int | None  # that takes longer; None if it is not one rank
    together: bool  # whether all ranks take longer in the same steps
    stage: str  # one of ``STAGES``
    seconds: float  # by how much longer such a step takes; the mean
    share: float  # of the time of all steps
    times: int  # number of such steps
    steps: int  # number of steps that were looked at
    every: int = 0  # steps from one to the next; 0 if they do not come regularly


@dataclass(frozen=True)
class _LongStep:
    number: int
    rank: int | None  # that takes longer; None if all ranks do
    stage: str
    excess_ns: float  # by how much longer than the median it takes


def find(
    steps: Mapping[int, Step],  # steps of all ranks by number: durations by rank
) -> list[RareDelay]:
    """Return the delays that the usual step leaves out, that of the largest share first."""
    if len(steps) < _LEAST_TIMES:
        return []
    times_ns = {number: max(map(sum, step.values())) for number, step in sorted(steps.items())}
    long_steps = _long_steps(steps, times_ns)
    of_single_ranks = [step for step in long_steps if step.rank is not None]
    if of_single_ranks and not are_synchronised([steps[step.number] for step in of_single_ranks]):
        # each delays nobody else
        long_steps = [step for step in long_steps if step.rank is None]
        of_single_ranks = []
    named = {
        (rank, stage)
        for rank, stage in {(step.rank, step.stage) for step in of_single_ranks}
        if rank is not None and _is_named(rank, stage, of_single_ranks, list(times_ns))
    }
    by_cause: dict[tuple[int | None, bool, str], list[_LongStep]] = {}
    for step in long_steps:
        rank = step.rank if (step.rank, step.stage) in named else None
        by_cause.setdefault((rank, step.rank is None, step.stage), []).append(step)
    total_ns = sum(times_ns.values())
    delays = [
        RareDelay(
            *cause,
            seconds=statistics.fmean(step.excess_ns for step in members) * 1e-9,
            share=sum(step.excess_ns for step in members) / total_ns,
            times=len(members),
            steps=len(steps),
            every=_interval([step.number for step in members], list(times_ns)),
        )
        for cause, members in by_cause.items()
        if len(members) >= _LEAST_TIMES
    ]
    worth_a_line = [delay for delay in delays if delay.share >= _LEAST_SHARE]
    return sorted(worth_a_line, key=lambda delay: delay.share, reverse=True)


def _long_steps(steps: Mapping[int, Step], times_ns: Mapping[int, int]) -> list[_LongStep]:
    """Return the steps that took longer than most, if it is known in which stage."""
    median_ns = statistics.median(times_ns.values())
    deviation_ns = statistics.median(abs(time - median_ns) for time in times_ns.values())
    least_ns = max(_LONGER_SHARE * median_ns, _LONGER_DEVIATIONS * deviation_ns)
    usual = _usual(steps)
    long_steps = []
    for number, time_ns in times_ns.items():
        excess_ns = time_ns - median_ns
        cause = _cause(steps[number], usual, excess_ns) if excess_ns > least_ns else None
        if cause is not None:
            long_steps.append(_LongStep(number, *cause, excess_ns=excess_ns))
    return long_steps


def _usual(steps: Mapping[int, Step]) -> dict[int, tuple[float, ...]]:
    """Return the median duration of each stage, by rank."""
    ranks = next(iter(steps.values()))
    return {
        rank: tuple(
            statistics.median(step[rank][place] for step in steps.values())
            for place in range(len(STAGES))
        )
        for rank in ranks
    }


def _cause(
    step: Step, usual: Mapping[int, Sequence[float]], excess_ns: float
) -> tuple[int | None, str] | None:
    """Return the rank and the stage that made a step long: rank None for all ranks alike.

    None if neither one rank nor what all have in common explains it. An evaluation is time in
    several stages, of which the longest is returned.
    """
    longer = {
        rank: [max(0.0, took - median) for took, median in zip(durations, usual[rank], strict=True)]
        for rank, durations in step.items()
    }
    of_all: Counter[str] = Counter()
    for place, stage in enumerate(STAGES):
        of_all[stage] = round(min(durations[place] for durations in longer.values()))
    by_cause: dict[int | None, Counter[str]] = {None: of_all}
    if len(step) > 1:
        for (rank, stage), behind in excesses(step).items():
            own = min(behind, longer[rank][STAGES.index(stage)])
            by_cause.setdefault(rank, Counter())[stage] = max(0, round(own))
    cause = max(by_cause, key=lambda rank: by_cause[rank].total())
    if by_cause[cause].total() < _EXPLAINED * excess_ns:
        return None
    return cause, by_cause[cause].most_common(1)[0][0]


def _is_named(
    rank: int, stage: str, of_single_ranks: Sequence[_LongStep], looked_at: Sequence[int]
) -> bool:
    """Return whether a rank has caused enough long steps in a stage to be named."""
    totals_ns: Counter[int | None] = Counter()
    for step in of_single_ranks:
        if step.stage == stage:
            totals_ns[step.rank] += round(step.excess_ns)
    own_ns = totals_ns.pop(rank)
    if own_ns < _TIMES_OTHERS * max(totals_ns.values(), default=0):
        return False
    own = [step.number for step in of_single_ranks if (step.rank, step.stage) == (rank, stage)]
    return len(own) >= _LEAST_IRREGULAR or _interval(own, looked_at) > 0


def _interval(numbers: Sequence[int], looked_at: Sequence[int]) -> int:
    """Return the steps from one long step to the next; 0 if most do not come regularly.

    Not all steps are timed: the interval divides the distances between those that were.
    """
    distances = {later - earlier for earlier, later in pairwise(numbers)}
    pairs = combinations_with_replacement(sorted(distances)[:_MOST_DISTANCES], 2)
    for interval in sorted({math.gcd(*pair) for pair in pairs} - {1}):
        offset, _ = Counter(number % interval for number in numbers).most_common(1)[0]
        regular = [number for number in numbers if number % interval == offset]
        expected = [number for number in looked_at if number % interval == offset]
        is_most_of_both = len(regular) >= _REGULAR * max(len(expected), len(numbers))
        if is_most_of_both and len(regular) >= _LEAST_TIMES:
            return interval
    return 0


def describe(
    usual: StepTime | None,
    delays: Sequence[RareDelay],
    hosts: Mapping[int, str],  # of each rank
    *,
    mean_s: float,  # of all steps of the run, timed or not
) -> dict[str, Any] | None:
    """Return where the time of steps went, as plain data; None if too few were timed."""
    if usual is None:
        return None
    rare = [
        {**asdict(delay), "host": "" if delay.rank is None else hosts.get(delay.rank, "")}
        for delay in delays
    ]
    return {**stage_times.describe(usual, hosts), "mean": mean_s, "rare": rare}
