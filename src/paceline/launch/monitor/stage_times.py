"""Account for the time of a step over all ranks: which stage took it, and which rank the others
waited for. Pure.

Synchronisation hides causes: a slow DataLoader on one rank shows up as time in ``backward`` on all
others. Averages of each stage therefore count one delay several times. This module follows the
*frontier* (StageFrontier, arXiv 2606.06751): the cumulative time of the furthest rank at the end of
each stage. Its increments add up exactly to the time of the step, and the rank that is last at a
boundary is the rank that the others will wait for.

A step is taken from the end of one gradient exchange to the end of the next, because that is when
DistributedDataParallel releases all ranks together. Its stages are therefore in the order of
``STAGES``: the optimizer step after the exchange comes first.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

# In order of time since the last exchange. "other" is the script's own code between an optimizer
# step and the next batch: logging, evaluation, checkpoints. "forward" begins when the batch is
# there and ends when backward begins, so it includes the copy to the device and the loss.
# "exchange" is the part of backward after this rank's own gradients: communication that no
# computation hides, and waiting for other ranks.
STAGES = ("optimizer", "other", "data", "forward", "backward", "exchange")
LOCAL = STAGES[:-1]
COMPUTE = ("optimizer", "forward", "backward")  # what a rank computes itself

# Steps that took longer than the median by this many median absolute deviations are left out: an
# evaluation or a checkpoint is part of "other" there, and not what a step usually takes.
OUTLIER = 8.0
MIN_STEPS = 8  # fewer say nothing
# A rank is named if a stage takes it longer than the others by this share of a step, and the
# difference is this many standard errors (from the median absolute deviation) away from zero.
MIN_SHARE = 0.04
MIN_ERRORS = 6.0
# Ranks are synchronised if at most this share of a rank's lateness before an exchange is left at
# its end. Independent ranks keep all of it.
MOST_KEPT = 0.5
# A rank may have waited for another one that fell behind earlier, by this share of its delay.
ALIKE = 0.8
_MOST_SUSPECTS = 5  # that are described
_MAD_TO_SIGMA = 1.4826  # for normally distributed values


@dataclass(frozen=True)
class Suspect:
    """A stage in which a rank falls behind the others."""

    rank: int  # the rank
    stage: str  # one of ``LOCAL``
    seconds: float  # by how much longer than for the others the stage takes, per step; the median
    errors: float  # ``seconds`` in standard errors


@dataclass(frozen=True)
class StepTime:
    """Where the time of a step goes."""

    seconds: float  # time of a step; the mean of the steps that were counted
    stages: Mapping[str, float]  # seconds per step of the typical rank by stage of ``LOCAL``
    # seconds per step of communication that nothing hides: after the last rank's own gradients were
    # ready
    exchange: float
    # seconds per step that the typical rank waits for the last one. ``stages``, ``exchange`` and
    # ``waiting`` add up to ``seconds``.
    waiting: float
    # share of the waiting of all steps, long ones included, by the rank that came last
    waited_for: Mapping[int, float] = field(default_factory=dict)
    # where ranks fall behind, the longest first, whether proven or not
    suspects: Sequence[Suspect] = ()
    steps: int = 0  # number of steps that were counted
    ranks: int = 1  # number of ranks

    @property
    def proven(self) -> Suspect | None:
        """The first suspect, if the evidence is enough to name it; else None."""
        for suspect in self.suspects[:1]:
            if suspect.seconds >= MIN_SHARE * self.seconds and suspect.errors >= MIN_ERRORS:
                return suspect
        return None


# Durations in nanoseconds by rank, in the order of STAGES.
Step = Mapping[int, Sequence[int]]


def account(
    steps: Iterable[Step],  # the same steps of all ranks
) -> StepTime | None:
    """Return where the time of these steps went; None with fewer than ``MIN_STEPS``."""
    all_steps = list(steps)
    usual = without_outliers(all_steps)
    if len(usual) < MIN_STEPS:
        return None
    if not are_synchronised(usual):
        return _of_independent_ranks(usual)
    stages = dict.fromkeys(LOCAL, 0.0)
    total = exchange = waiting = 0.0
    for step in usual:
        arrivals = _arrivals(step)
        typical, last = _typical(arrivals), max(arrivals, key=lambda rank: arrivals[rank])
        for stage, duration in zip(LOCAL, step[typical], strict=False):
            stages[stage] += duration
        waiting += arrivals[last] - arrivals[typical]
        # The exchange that nobody waited in is that of the rank that came last.
        exchange += step[last][-1]
        total += arrivals[last] + step[last][-1]
    per_step_s = 1e-9 / len(usual)
    return StepTime(
        seconds=total * per_step_s,
        stages={stage: duration * per_step_s for stage, duration in stages.items()},
        exchange=exchange * per_step_s,
        waiting=waiting * per_step_s,
        waited_for=_waited_for(all_steps),
        suspects=suspects(usual),
        steps=len(usual),
        ranks=len(usual[0]),
    )


def _waited_for(steps: Iterable[Step]) -> dict[int, float]:
    """Return the share of all waiting that the typical rank spent on each rank."""
    waited: Counter[int] = Counter()
    for step in steps:
        arrivals = _arrivals(step)
        last = max(arrivals, key=lambda rank: arrivals[rank])
        waited[last] += arrivals[last] - arrivals[_typical(arrivals)]
    total = waited.total()
    return {rank: duration / total for rank, duration in waited.items() if duration}


def _of_independent_ranks(steps: Sequence[Step]) -> StepTime:
    """Return where the time of the typical rank goes; no rank waits for another one."""
    per_step_s = 1e-9 / len(steps)
    totals = [0] * len(STAGES)
    for step in steps:
        durations = step[_typical({rank: sum(step[rank]) for rank in step})]
        totals = [total + duration for total, duration in zip(totals, durations, strict=True)]
    return StepTime(
        seconds=sum(totals) * per_step_s,
        stages={stage: total * per_step_s for stage, total in zip(LOCAL, totals, strict=False)},
        exchange=totals[-1] * per_step_s,
        waiting=0.0,
        steps=len(steps),
        ranks=len(steps[0]),
    )


def are_synchronised(steps: Sequence[Step]) -> bool:
    """Return whether ranks leave the exchange together, whenever they came to it.

    Ranks that exchange no gradients, or not in backward, are as late at the end of a step as before
    its exchange. What is kept is the slope of a regression: where ranks share CPUs, the end of an
    exchange is spread by some milliseconds that have nothing to do with who came late.
    """
    covariance = variance = 0.0  # of lateness before and after an exchange, and of that before it
    for step in steps:
        arrivals, ends = _arrivals(step), {rank: sum(step[rank]) for rank in step}
        mean_arrival, mean_end = (
            statistics.fmean(arrivals.values()),
            statistics.fmean(ends.values()),
        )
        for rank, arrival in arrivals.items():
            variance += (arrival - mean_arrival) ** 2
            covariance += (arrival - mean_arrival) * (ends[rank] - mean_end)
    return covariance <= MOST_KEPT * variance


def _arrivals(step: Step) -> dict[int, int]:
    """Return the time of each rank until its own gradients are computed."""
    return {rank: sum(durations[:-1]) for rank, durations in step.items()}


def _typical(times: Mapping[int, int]) -> int:
    """Return the rank of the lower median."""
    return sorted(times, key=lambda rank: times[rank])[(len(times) - 1) // 2]


def without_outliers(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that took about as long as most."""
    if not steps:
        return []
    times = [max(sum(durations) for durations in step.values()) for step in steps]
    median = statistics.median(times)
    deviation = statistics.median(abs(time - median) for time in times)
    most = median + OUTLIER * max(deviation, 0.01 * median)
    return [step for step, time in zip(steps, times, strict=True) if time <= most]


def suspects(steps: Sequence[Step]) -> list[Suspect]:
    """Return where each rank falls behind the others, the longest first."""
    if len(steps[0]) < 2:
        return []
    of_steps = [excesses(step) for step in steps]
    candidates = [
        _suspect(rank, stage, [of_step[rank, stage] for of_step in of_steps])
        for rank, stage in of_steps[0]
    ]
    longest_first = sorted(
        (suspect for suspect in candidates if suspect.seconds > 0),
        key=lambda suspect: suspect.seconds,
        reverse=True,
    )
    return _cause_first(longest_first)


def excesses(step: Step) -> dict[tuple[int, str], float]:
    """Return by how many nanoseconds each rank falls behind the others in each stage of a step.

    A rank falls behind in a stage by as much as the stage takes it longer than the median of the
    others, but by no more than it is behind at the stage's end: a rank that waited for another one
    *within* a stage takes long and is behind nobody, if most ranks waited. If only this rank did,
    it is as far behind as the one that it waited for; that one fell behind earlier, and comes
    first.
    """
    ends = {rank: tuple(accumulate(durations)) for rank, durations in step.items()}
    excess_ns: dict[tuple[int, str], float] = {}
    for place, stage in enumerate(LOCAL):
        longer = _over_others({rank: durations[place] for rank, durations in step.items()})
        behind = _over_others({rank: times[place] for rank, times in ends.items()})
        for rank in sorted(step):
            excess_ns[rank, stage] = min(longer[rank], behind[rank])
    return excess_ns


def _cause_first(longest_first: list[Suspect]) -> list[Suspect]:
    """Return suspects with that one first for which the first may only have waited."""
    if not longest_first:
        return []
    first = longest_first[0]
    earlier_stages = LOCAL[: LOCAL.index(first.stage)]
    causes = [
        suspect
        for suspect in longest_first
        if suspect.rank != first.rank
        and suspect.stage in earlier_stages
        and suspect.seconds >= ALIKE * first.seconds
    ]
    return list(dict.fromkeys([*causes[:1], *longest_first]))


def _suspect(rank: int, stage: str, excesses: Sequence[float]) -> Suspect:
    median = statistics.median(excesses)
    deviation = statistics.median(abs(excess - median) for excess in excesses)
    # The standard error of a median is 1.2533 that of the mean, for normally distributed values.
    error = 1.2533 * _MAD_TO_SIGMA * deviation / len(excesses) ** 0.5
    return Suspect(rank, stage, median * 1e-9, median / error if error else float("inf"))


def _over_others(values: Mapping[int, int]) -> dict[int, float]:
    """Return by how much each value is over the median of the others."""
    ordered = sorted(values.values())
    num_others = len(ordered) - 1
    middle = ((num_others - 1) // 2, num_others // 2)
    differences = {}
    for key, value in values.items():
        own_place = bisect_left(ordered, value)
        low, high = (ordered[place + (place >= own_place)] for place in middle)
        differences[key] = value - (low + high) / 2
    return differences


def describe(
    step_time: StepTime,  # the account of the timed steps
    hosts: Mapping[int, str],  # host of each rank
) -> dict[str, Any]:
    """Return where the time of the usual step went, as plain data."""
    first_suspects = [
        {**asdict(suspect), "host": hosts.get(suspect.rank, "")}
        for suspect in step_time.suspects[:_MOST_SUSPECTS]
    ]
    return {
        "seconds": step_time.seconds,
        "stages": dict(step_time.stages),
        "exchange": step_time.exchange,
        "waiting": step_time.waiting,
        "waited_for": {str(rank): share for rank, share in step_time.waited_for.items()},
        "named": first_suspects[0] if step_time.proven else None,
        "suspects": first_suspects,
        "timed_steps": step_time.steps,
    }
