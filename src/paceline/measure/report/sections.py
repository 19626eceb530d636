"""Decide what is in a report, in which order, and which plots of time and scaling. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.measure.report import (
    overview,
    speed,
    training_plots,
)
from paceline.measure.report.facts import Forecast, ForecastPoint, Run, Scaling
from paceline.measure.report.plots import Axis, Curve, Plot, of_runs, thinned
from paceline.measure.report.speed import Rate


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str  # its heading
    sentences: tuple[str, ...]  # what can be read from the plots, in words
    plots: tuple[Plot, ...]  # the plots


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the sections that have a plot or a sentence."""
    names = of_runs(runs)
    drawn = [
        Section("Training", (), tuple(training_plots.plots(runs, names))),
        _with_sentences(
            "Time",
            _time_plots(runs, names),
            lambda run: overview.step_sentences(run.split),
            runs,
            names,
        ),
        _with_sentences("Ranks", (), overview.rank_sentences, runs, names),
        _with_sentences(
            "Scaling", _scaling_plots(runs, names), overview.scaling_sentences, runs, names
        ),
        _with_sentences("Network", (), overview.network_sentences, runs, names),
    ]
    return [section for section in drawn if section.plots or section.sentences]


def _with_sentences(
    title: str,
    plots: Sequence[Plot],
    sentences_of: Callable[[Run], list[str]],
    runs: Sequence[Run],
    names: Sequence[str],
) -> Section:
    sentences: list[str] = []
    for run, name in zip(runs, names, strict=True):
        text = " ".join(sentences_of(run))
        if text:
            sentences.append(text if len(runs) == 1 else f"{name}: {text}")
    return Section(title, tuple(sentences), tuple(plots))


_MOST_TICKS = 9  # of an axis of ranks
_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def _time_plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
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


def _scaling_plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return the throughput by number of ranks of each bench and forecast."""
    drawn = []
    for run, name in zip(runs, names, strict=True):
        if run.scaling or run.forecast is not None:
            suffix = f": {name}" if len(runs) > 1 else ""
            drawn.append(_scaling(run.scaling, run.forecast, suffix))
    return drawn


def _scaling(measured: Sequence[Scaling], forecast: Forecast | None, suffix: str) -> Plot:
    # The forecast begins where the measurement does, so that both can be compared.
    least = measured[0].ranks if measured else 1
    points = [point for point in forecast.points if point.ranks >= least] if forecast else []
    sizes = sorted({row.ranks for row in measured} | {point.ranks for point in points})
    ticks = sizes[:: -(-len(sizes) // _MOST_TICKS)]  # so that labels do not touch
    subtitle = "bars and band: 95 % intervals" if forecast else "bars: 95 % intervals"
    return Plot(
        title=f"Throughput by number of ranks{suffix}",
        subtitle=f"{subtitle}; logarithmic axes",
        x=Axis("ranks", is_log=True, ticks=ticks, labels=[f"{size:,}" for size in ticks]),
        y=Axis("samples/s", is_log=True),
        curves=(*_forecast_curves(points), *_measured_curves(measured, sizes)),
    )


def _measured_curves(measured: Sequence[Scaling], sizes: Sequence[int]) -> list[Curve]:
    if not measured:
        return []
    base = measured[0]
    per_rank = base.ideal_samples_per_s / base.ranks
    ideal_sizes = [size for size in sizes if size >= base.ranks]
    rates = [row.samples_per_s for row in measured]
    curves = [
        Curve(
            "measured",
            [row.ranks for row in measured],
            [rate.value for rate in rates],
            "run-0",
            "line" if len(measured) > 1 else "dots",
            low=[rate.low for rate in rates],
            high=[rate.high for rate in rates],
        )
    ]
    if len(ideal_sizes) > 1:
        values = [per_rank * size for size in ideal_sizes]
        curves.insert(0, Curve("ideal", ideal_sizes, values, "ideal", "dashed"))
    return curves


def _forecast_curves(points: Sequence[ForecastPoint]) -> list[Curve]:
    if not points:
        return []
    return [
        Curve(
            "forecast",
            [point.ranks for point in points],
            [point.samples_per_s for point in points],
            "forecast",
            "dotted",
            low=[point.low for point in points],
            high=[point.high for point in points],
        )
    ]
