"""Decide whether a run is slower than another one, or its loss higher, with confidence. Pure.

Speeds are those of the intervals of some seconds that a launcher writes; losses are compared at
equal steps. The bootstrap sees the noise within each run, and not what differs between machines or
hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import Finding
from paceline.measure import intervals
from paceline.measure.intervals import Interval
from paceline.measure.report.facts import ReportedRun
from paceline.measure.report.speed import rates

REGRESSED, UNDECIDED = "run-regressed", "comparison-undecided"
SPEED, LOSS = "speed", "loss"  # what can be compared
_LEAST_VALUES = 6  # of each run; the interval of fewer says nothing
_LOSSES = ("loss", "train_loss", "train/loss")  # the first that both runs have logged


@dataclass(frozen=True)
class RunComparison:
    """How a figure of the second run compares with that of the first."""

    name: str  # ``SPEED`` or ``LOSS``
    what: str  # the figure, in words
    ratio: Interval | None = None  # second to first; None if it is unknown
    unknown: str = ""  # why it is unknown


def compare_speed(first: ReportedRun, second: ReportedRun) -> RunComparison:
    """Compare the time of a sample, or of a step where batches are unknown or equal."""
    measured = [rates(run.attempts, run.speed) for run in (first, second)]
    # Another batch changes the time of a step and not what is asked: how fast samples go through.
    by_sample = all(rate.samples_per_s for run_rates in measured for rate in run_rates)
    what = "the time of a sample" if by_sample else "the time of a step"
    seconds = [
        [
            1 / value
            for rate in run_rates
            if (value := rate.samples_per_s if by_sample else rate.steps_per_s) > 0
        ]
        for run_rates in measured
    ]
    reason = _why_unknown(seconds, "intervals of 5 s in which it trained")
    if reason:
        return RunComparison(SPEED, what, unknown=reason)
    return RunComparison(SPEED, what, intervals.ratio([seconds[1]], [seconds[0]]))


def compare_losses(first: ReportedRun, second: ReportedRun) -> RunComparison:
    """Compare the losses at equal steps, in the second half of the steps that both have logged."""
    name = next((name for name in _LOSSES if name in first.metrics and name in second.metrics), "")
    if not name:
        reason = f"both runs have to log one of {', '.join(_LOSSES)}"
        return RunComparison(LOSS, "the loss", unknown=reason)
    series = [
        dict(zip(run.metrics[name].steps, run.metrics[name].values, strict=True))
        for run in (first, second)
    ]
    # At the start losses fall fast and differ by the seed; a change that matters lasts.
    common = sorted(series[0].keys() & series[1].keys())
    late = common[len(common) // 2 :]
    what = f"{name} at equal steps"
    values = [[series_of_run[step] for step in late] for series_of_run in series]
    reason = _why_unknown(values, "equal steps in their second half")
    if reason:
        return RunComparison(LOSS, what, unknown=reason)
    ratios = [after / before for before, after in zip(*values, strict=True)]
    return RunComparison(LOSS, what, intervals.median([ratios]))


def _why_unknown(values: Sequence[Sequence[float]], unit: str) -> str:
    """Return why the values of two runs cannot be compared; empty if they can."""
    fewest = min(map(len, values))
    if fewest < _LEAST_VALUES:
        return f"a run has {fewest} {unit}, of {_LEAST_VALUES} needed"
    # A negative loss, as of a likelihood of densities, has no growth in percent.
    if min(map(min, values)) <= 0:
        return "values that are not positive have no ratio"
    return ""


def judge(
    comparison: RunComparison,  # the figure of two runs
    most: float,  # the share by which it may grow
    *,
    runs: tuple[str, str],  # names of the runs
) -> Finding | None:
    """Return the finding that a figure has grown too much, or that it is not known; else None."""
    ratio, where = comparison.ratio, " and ".join(runs)
    if ratio is None:
        return _undecided(f"{comparison.what} cannot be compared", where, comparison.unknown)
    grown = f"{_percent(ratio.value)} ({_percent(ratio.low)} to {_percent(ratio.high)})"
    if ratio.low > 1 + most:
        what = f"{comparison.what} has grown by {grown}; at most {_percent(1 + most)} was asked"
        return Finding(REGRESSED, what, where=where)
    if ratio.high > 1 + most:
        evidence = f"it has grown by {grown}: an interval on both sides of {_percent(1 + most)}"
        return _undecided(f"{comparison.what} may have grown too much", where, evidence)
    return None


def _undecided(what: str, where: str, evidence: str) -> Finding:
    return Finding(
        UNDECIDED,
        what,
        where=where,
        evidence=(evidence,),
        fix="let both train longer, on machines that nothing else uses",
    )


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}"
