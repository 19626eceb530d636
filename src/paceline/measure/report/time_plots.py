"""Decide which plots of the time a report shows: speed, split of a step, ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.measure.report import speed
from paceline.measure.report.facts import Run
from paceline.measure.report.plots import Axis, Curve, Plot, thinned
from paceline.measure.report.speed import Rate

_MOST_BARS = 32  # ranks; more are drawn as dots
_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return the speed of all runs, then where the time of a step went in each."""
    splits = [plot for run, name in zip(runs, names, strict=True) for plot in _split(run, name)]
    if len(runs) == 1:
        splits = [_renamed(plot, "Where the time of a step goes") for plot in splits]
    return [*splits, *_rates(runs, names)]


def _renamed(plot: Plot, title: str) -> Plot:
    return Plot(title, plot.subtitle, plot.x, plot.y, plot.curves)


def _rates(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return the throughput over time: in samples where they are known, else in steps."""
    by_run = [speed.rates(run.attempts, run.speed) for run in runs]
    every = [rate for rates in by_run for rate in rates]
    if not every:
        return []
    in_samples = all(rate.samples_per_s > 0 for rate in every)
    scale, unit = _unit(max(rate.elapsed_s for rate in every))
    curves = [
        _rate_curve(rates, names[place], f"run-{place}", scale=scale, in_samples=in_samples)
        for place, rates in enumerate(by_run)
        if rates
    ]
    word = "samples/s" if in_samples else "optimizer steps/s"
    return [
        Plot(
            title="Throughput",
            subtitle=f"{word} over all ranks, mean of each interval",
            x=Axis(f"{unit} of running"),
            y=Axis(word, from_zero=True),
            curves=tuple(curves),
        )
    ]


def _rate_curve(
    rates: Sequence[Rate], name: str, colour: str, *, scale: float, in_samples: bool
) -> Curve:
    values = [rate.samples_per_s if in_samples else rate.steps_per_s for rate in rates]
    times_s = [rate.elapsed_s for rate in rates]
    if len(rates) == 1:  # of two records: as long as its interval
        times_s, values = [rates[0].began_s, *times_s], values * 2
    x, y = thinned([time_s / scale for time_s in times_s], values)
    return Curve(name, x, y, colour)


def _unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds of a unit that suits a time, and its name."""
    return next((scale, name) for least_s, scale, name in _UNITS if longest_s >= least_s)


def _split(run: Run, name: str) -> list[Plot]:
    """Return the split of a step over time, or of the whole run where there is only one."""
    times_s = speed.elapsed(run.attempts, run.speed)
    timed = [
        (time_s, point.split)
        for time_s, point in zip(times_s, run.speed, strict=True)
        if point.split is not None
    ]
    if len(timed) < 2:
        return _whole_split(run, name)
    scale, unit = _unit(timed[-1][0])
    x = [time_s / scale for time_s, _ in timed]
    parts = timed[-1][1].parts
    curves = tuple(
        Curve(part, x, [split.parts.get(part, 0.0) * 1000 for _, split in timed], part, "area")
        for part in parts
    )
    return [
        Plot(
            title=f"Time of a step: {name}",
            subtitle="ms of a step of the typical rank, stacked",
            x=Axis(f"{unit} of running"),
            y=Axis("ms per step", from_zero=True),
            curves=curves,
        )
    ]


def _whole_split(run: Run, name: str) -> list[Plot]:
    if run.split is None:
        return []
    curves = tuple(
        Curve(part, [0], [seconds * 1000], part, "bar") for part, seconds in run.split.parts.items()
    )
    return [
        Plot(
            title=f"Time of a step: {name}",
            subtitle="ms of a step of the typical rank",
            x=Axis("", ticks=(0,), labels=("mean of the run",)),
            y=Axis("ms per step", from_zero=True),
            curves=curves,
        )
    ]


def rank_plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return how the own work of a step is spread over the ranks of each run."""
    drawn = []
    for run, name in zip(runs, names, strict=True):
        if len(run.ranks) > 1:
            title = "Own work of each rank"
            drawn.append(_ranks(run, title if len(runs) == 1 else f"{title}: {name}"))
    return drawn


def _ranks(run: Run, title: str) -> Plot:
    ranks = sorted(run.ranks, key=lambda rank: rank.rank)
    form = "bar" if len(ranks) <= _MOST_BARS else "dots"
    x = [rank.rank for rank in ranks]
    data_ms = [rank.data_s * 1000 for rank in ranks]
    rest_ms = [(rank.own_s - rank.data_s) * 1000 for rank in ranks]
    return Plot(
        title=title,
        subtitle="ms of a step outside backward, in which ranks wait for each other",
        x=_rank_axis(x),
        y=Axis("ms per step", from_zero=True),
        curves=(
            Curve("waiting for data", x, data_ms, "data", form),
            Curve("forward, optimizer and other code", x, rest_ms, "forward", form),
        ),
    )


def _rank_axis(ranks: Sequence[int]) -> Axis:
    if len(ranks) > _MOST_BARS:
        return Axis("rank")
    return Axis("rank", ticks=ranks, labels=[str(rank) for rank in ranks])
