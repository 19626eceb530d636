"""Decide what is in a report: which plots there are, and the order of all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.measure.report import overview, speed
from paceline.measure.report.facts import (
    ForecastFacts,
    ForecastPoint,
    ReportedRun,
    Scaling,
    SpeedPoint,
)
from paceline.measure.report.plots import (
    Axis,
    Curve,
    Plot,
    metric_group,
    of_runs,
    spans_decades,
    thinned,
)
from paceline.measure.report.speed import Rate
from paceline.text.quoting import printable


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str  # its heading
    sentences: tuple[str, ...]  # what can be read from the plots, in words
    plots: tuple[Plot, ...]  # the plots


def sections(runs: Sequence[ReportedRun]) -> list[Section]:
    """Return the sections that have a plot or a sentence."""
    names = of_runs(runs)
    drawn = [
        Section("Training", (), tuple(_metric_plots(runs, names))),
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
    sentences_of: Callable[[ReportedRun], list[str]],
    runs: Sequence[ReportedRun],
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


def _time_plots(runs: Sequence[ReportedRun], names: Sequence[str]) -> list[Plot]:
    """Return the speed of all runs, then where the time of a step went in each."""
    splits = [plot for run, name in zip(runs, names, strict=True) for plot in _split(run, name)]
    if len(runs) == 1:
        splits = [_renamed(plot, "Where the time of a step goes") for plot in splits]
    memory = [
        *_memory(runs, names, "Memory of a rank", "on its host", lambda point: point.memory_bytes),
        *_memory(
            runs,
            names,
            "GPU memory of a rank",
            "of its tensors",
            lambda point: point.gpu_memory_bytes,
        ),
    ]
    return [*splits, *_rates(runs, names), *memory]


def _memory(
    runs: Sequence[ReportedRun],
    names: Sequence[str],
    title: str,
    what: str,
    size_of: Callable[[SpeedPoint], float],
) -> list[Plot]:
    """Return the memory over time of the rank that has most; nothing if it is unknown."""
    times_s = {
        place: speed.elapsed(run.attempts, run.speed)
        for place, run in enumerate(runs)
        if len(run.speed) > 1 and any(map(size_of, run.speed))
    }
    if not times_s:
        return []
    scale, unit = _unit(max(max(times) for times in times_s.values()))
    curves = []
    for place, times in times_s.items():
        sizes = [size_of(point) / 2**30 for point in runs[place].speed]
        x, y = thinned([time_s / scale for time_s in times], sizes)
        curves.append(Curve(names[place], x, y, f"run-{place}", _form(x)))
    return [
        Plot(
            title=title,
            subtitle=f"GiB {what}, of the rank that has most",
            x=Axis(f"{unit} of running"),
            y=Axis("GiB", from_zero=True),
            curves=tuple(curves),
        )
    ]


def _renamed(plot: Plot, title: str) -> Plot:
    return Plot(title, plot.subtitle, plot.x, plot.y, plot.curves)


def _rates(runs: Sequence[ReportedRun], names: Sequence[str]) -> list[Plot]:
    """Return the throughput over time: in samples where they are known, else in steps."""
    by_run = [speed.rates(run.attempts, run.speed) for run in runs]
    every = [rate for rates in by_run for rate in rates]
    if not every:
        return []
    # One unit for all curves, or they could not be compared.
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


def _split(run: ReportedRun, name: str) -> list[Plot]:
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


def _whole_split(run: ReportedRun, name: str) -> list[Plot]:
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


def _scaling_plots(runs: Sequence[ReportedRun], names: Sequence[str]) -> list[Plot]:
    """Return the throughput by number of ranks of each bench and forecast."""
    drawn = []
    for run, name in zip(runs, names, strict=True):
        if run.scaling or run.forecast is not None:
            suffix = f": {name}" if len(runs) > 1 else ""
            drawn.append(_scaling(run.scaling, run.forecast, suffix))
    return drawn


def _scaling(measured: Sequence[Scaling], forecast: ForecastFacts | None, suffix: str) -> Plot:
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


# The second metric of a plot in which colours stand for runs.
_FORMS = ("line", "dashed", "dotted")
_FIRST = ("loss", "accuracy")  # these are shown before other metrics


def _metric_plots(runs: Sequence[ReportedRun], names: Sequence[str]) -> list[Plot]:
    """Return a plot for each group of metrics, losses first."""
    groups: dict[str, None] = {}
    for run in runs:
        groups |= {metric_group(metric): None for metric in run.metrics}
    ordered = sorted(groups, key=_order)
    drawn = [_plot(group, runs, names) for group in ordered]
    return [*drawn, *_unlogged(runs, names)]


def _order(group: str) -> tuple[int, str]:
    for place, word in enumerate(_FIRST):
        if word in group.lower():
            return place, group
    return len(_FIRST), group


def _plot(group: str, runs: Sequence[ReportedRun], names: Sequence[str]) -> Plot:
    members = _members(group, runs)
    curves = [
        _curve(run, place, members, number, run_name=names[place] if len(runs) > 1 else "")
        for place, run in enumerate(runs)
        for number, metric in enumerate(members)
        if metric in run.metrics
    ]
    is_log = spans_decades([value for curve in curves for value in curve.y])
    title = printable(members[0] if len(members) == 1 else group)
    forms = _forms(members) if len(runs) > 1 and len(members) > 1 else ""
    return Plot(
        title=title,
        subtitle="; ".join(filter(None, (forms, _not_finite(group, runs)))),
        x=Axis("step, as it was logged"),
        y=Axis("logarithmic" if is_log else title, is_log=is_log),
        curves=tuple(curves),
    )


def _members(group: str, runs: Sequence[ReportedRun]) -> list[str]:
    """Return the metrics of a group in the order in which the runs logged them."""
    metrics = dict.fromkeys(metric for run in runs for metric in run.metrics)
    return [metric for metric in metrics if metric_group(metric) == group]


def _curve(
    run: ReportedRun, place: int, members: Sequence[str], number: int, *, run_name: str
) -> Curve:
    """Return the curve of a metric: of one run colours stand for metrics, of several for runs."""
    metric = members[number]
    x, y = thinned(run.metrics[metric].steps, run.metrics[metric].values)
    form = _form(x)
    if not run_name:
        return Curve(printable(metric), x, y, f"run-{number}", form)
    if form == "line":
        form = _FORMS[min(number, len(_FORMS) - 1)]
    name = run_name if len(members) == 1 else f"{run_name} · {printable(metric)}"
    return Curve(name, x, y, f"run-{place}", form, label="" if number else run_name)


def _form(x: Sequence[float]) -> str:
    """Return how measured values are drawn: a line between two would suggest what lies between."""
    return "line" if len(x) > 2 else "dots"


def _forms(members: Sequence[str]) -> str:
    """Return which kind of line is which metric."""
    words = {"line": "solid", "dashed": "dashed", "dotted": "dotted"}
    forms = [_FORMS[min(number, len(_FORMS) - 1)] for number in range(len(members))]
    pairs = zip(forms, members, strict=True)
    return ", ".join(f"{words[form]}: {printable(metric)}" for form, metric in pairs)


def _not_finite(group: str, runs: Sequence[ReportedRun]) -> str:
    """Return a sentence about the first value that is not a number, empty if all are."""
    for run in runs:
        for metric in _members(group, [run]):
            series = run.metrics[metric]
            for step, value in zip(series.steps, series.values, strict=True):
                if value - value != 0:  # an infinity or NaN
                    return f"{printable(metric)} is not finite from step {step:,} on"
    return ""


def _unlogged(runs: Sequence[ReportedRun], names: Sequence[str]) -> list[Plot]:
    """Return the loss that the probe saw, of runs that have logged no numbers."""
    curves = []
    for place, run in enumerate(runs):
        losses = _probed_losses(run)
        if losses and not run.metrics:
            x, y = thinned(list(losses), list(losses.values()))
            curves.append(Curve(names[place], x, y, f"run-{place}", _form(x)))
    if not curves:
        return []
    is_log = spans_decades([value for curve in curves for value in curve.y])
    return [
        Plot(
            title="loss of single batches",
            subtitle="what rank 0 called backward on when the speed was written",
            x=Axis("seconds of running"),
            y=Axis("logarithmic" if is_log else "loss", is_log=is_log),
            curves=tuple(curves),
        )
    ]


def _probed_losses(run: ReportedRun) -> Mapping[float, float]:
    """Return the losses that the probe saw, by seconds of running."""
    times_s = speed.elapsed(run.attempts, run.speed)
    return {
        time_s: point.loss
        for time_s, point in zip(times_s, run.speed, strict=True)
        if point.loss is not None
    }
