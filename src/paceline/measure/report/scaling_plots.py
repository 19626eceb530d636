"""Decide which plots of scaling a report shows: throughput, efficiency, ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.measure.report.facts import Bench, Forecast, ForecastPoint, Run, Scaling
from paceline.measure.report.plots import Axis, Curve, Plot
from paceline.measure.report.scaling import own_times

_MOST_TICKS = 9


def plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return throughput and efficiency by ranks, and the spread over ranks, of each bench."""
    drawn: list[Plot] = []
    for run, name in zip(runs, names, strict=True):
        suffix = f": {name}" if len(runs) > 1 else ""
        if run.scaling or run.forecast is not None:
            drawn += _scaling(run.scaling, run.forecast, suffix)
        if run.bench is not None:
            drawn += _own_work(run.bench, suffix)
    return drawn


def _scaling(measured: Sequence[Scaling], forecast: Forecast | None, suffix: str) -> list[Plot]:
    forecast_points = _with_base(forecast.points, measured) if forecast else []
    sizes = sorted({row.ranks for row in measured} | {point.ranks for point in forecast_points})
    x = _ranks_axis(sizes)
    subtitle = "bars and band: 95 % intervals" if forecast else "bars: 95 % intervals"
    throughput = [*_forecast_curves(forecast_points), *_measured_curves(measured, sizes)]
    drawn = [
        Plot(
            title=f"Throughput by number of ranks{suffix}",
            subtitle=f"{subtitle}; logarithmic axes",
            x=x,
            y=Axis("samples/s", is_log=True),
            curves=tuple(throughput),
        )
    ]
    if measured and len(sizes) > 1:
        drawn.append(_efficiency(measured, forecast_points, x, f"{subtitle}", suffix))
    return drawn


def _with_base(points: Sequence[ForecastPoint], measured: Sequence[Scaling]) -> list[ForecastPoint]:
    """Return the forecast from where the measurement begins, so that both can be compared."""
    least = measured[0].ranks if measured else 1
    return [point for point in points if point.ranks >= least]


def _ranks_axis(sizes: Sequence[int]) -> Axis:
    every = -(-len(sizes) // _MOST_TICKS)  # so that labels do not touch
    ticks = sizes[::every]
    return Axis("ranks", is_log=True, ticks=ticks, labels=[f"{size:,}" for size in ticks])


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


def _efficiency(
    measured: Sequence[Scaling],
    forecast: Sequence[ForecastPoint],
    x: Axis,
    subtitle: str,
    suffix: str,
) -> Plot:
    per_rank = measured[0].ideal_samples_per_s / measured[0].ranks
    percent = [row.efficiency for row in measured]
    curves = [
        Curve(
            "measured",
            [row.ranks for row in measured],
            [share.value * 100 for share in percent],
            "run-0",
            low=[share.low * 100 for share in percent],
            high=[share.high * 100 for share in percent],
        )
    ]
    if forecast:
        shares = [100 / (point.ranks * per_rank) for point in forecast]
        rows = list(zip(forecast, shares, strict=True))
        predicted = Curve(
            "forecast",
            [point.ranks for point in forecast],
            [point.samples_per_s * share for point, share in rows],
            "forecast",
            "dotted",
            low=[point.low * share for point, share in rows],
            high=[point.high * share for point, share in rows],
        )
        curves.insert(0, predicted)
    return Plot(
        title=f"Efficiency{suffix}",
        subtitle=f"throughput of a rank, as a share of that with {measured[0].ranks}; {subtitle}",
        x=x,
        y=Axis("% of ideal", from_zero=True),
        curves=tuple(curves),
    )


def _own_work(bench: Bench, suffix: str) -> list[Plot]:
    """Return the spread of the own work over the ranks of the largest world."""
    if not bench.worlds:
        return []
    world = bench.worlds[-1]
    times = own_times(world)
    if len(times) < 2:
        return []
    ranks = [time.rank for time in times]
    curve = Curve(
        "own work",
        ranks,
        [time.median_s * 1000 for time in times],
        "run-0",
        "dots",
        low=[time.low_s * 1000 for time in times],
        high=[time.high_s * 1000 for time in times],
    )
    axis = Axis("rank", ticks=ranks, labels=[str(rank) for rank in ranks])
    return [
        Plot(
            title=f"Own work of each rank in the bench{suffix}",
            subtitle="ms of a step outside the exchange: median, and from 5 % to 95 % of the steps",
            x=axis if len(ranks) <= _MOST_TICKS else Axis("rank"),
            y=Axis("ms per step", from_zero=True),
            curves=(curve,),
        )
    ]
