"""Print a forecast for a person, in 80 columns, with what training costs. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.measure.forecast.prediction import Forecast, Point

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Cost:
    """What a number of samples costs on one world size."""

    world: int  # number of ranks
    hours: float  # hours from begin to end
    low_hours: float  # lower end of their interval
    high_hours: float  # upper end
    gpu_hours: float  # ``hours`` times ranks
    money: float | None  # GPU hours times the price of one; None without a price
    low_money: float | None  # lower end of its interval
    high_money: float | None  # upper end


def costs(forecast: Forecast, samples: float, price: float | None) -> list[Cost]:
    """Return what training on so many samples costs at each point of a forecast.

    Samples are those of all epochs. ``price`` is that of a GPU hour, in any currency; None to leave
    money out.
    """
    return [_cost(point, samples, price) for point in forecast.points]


def _cost(point: Point, samples: float, price: float | None) -> Cost:
    hours = samples / point.samples_per_s / _HOUR_S
    low, high = samples / point.high / _HOUR_S, samples / point.low / _HOUR_S
    rate = None if price is None else price * point.world
    return Cost(
        world=point.world,
        hours=hours,
        low_hours=low,
        high_hours=high,
        gpu_hours=hours * point.world,
        money=None if rate is None else hours * rate,
        low_money=None if rate is None else low * rate,
        high_money=None if rate is None else high * rate,
    )


_COLUMNS = 80
_LONGEST_COMMAND = 60


def render(forecast: Forecast, costs: Sequence[Cost] = ()) -> str:
    """Return the forecast as text; without costs what training costs is left out."""
    lines = [
        f"forecast of {_command(forecast)}",
        "",
        f"{'ranks':>7}{'nodes':>7}{forecast.unit + '/s':>16}"
        f"{'95 % interval':>28}{'efficiency':>14}",
        f"{1:>7,}{1:>7,}{_rate(forecast.single_per_s):>16}{'':28}{'100%':>14}",
        *(_row(point) for point in forecast.points),
        "",
        *_wrapped(verdict(forecast)),
    ]
    if costs:
        lines += ["", *_costs(costs)]
    for note in forecast.notes:
        lines += ["", *_wrapped(note)]
    return "\n".join(lines)


def _command(forecast: Forecast) -> str:
    return textwrap.shorten(" ".join(forecast.command), _LONGEST_COMMAND, placeholder=" ...")


def _row(point: Point) -> str:
    rate = _rate(point.samples_per_s)
    efficiency = f"{point.efficiency:.0%}"
    return (
        f"{point.world:>7,}{point.num_nodes:>7,}{('<= ' if point.is_bound else '') + rate:>16}"
        f"{_rate(point.low) + ' - ' + _rate(point.high):>28}"
        f"{('<= ' if point.is_bound else '') + efficiency:>14}"
    )


def verdict(forecast: Forecast) -> str:
    """Return in one sentence how far scaling pays."""
    if forecast.half_worth_at is None:
        if not forecast.points:
            return "Nothing to forecast: no world size has a sample for each rank."
        largest = forecast.points[-1]
        up_to = "At most up to" if largest.is_bound else "Up to"
        return f"{up_to} {largest.world:,} ranks, another one brings more than half of itself."
    if forecast.should_scale:
        beyond = [point for point in forecast.points if point.world > forecast.half_worth_at]
        is_bound = any(point.is_bound for point in beyond[:1])
        begin = "At the latest from" if is_bound else "From about"
        return (
            f"{begin} {forecast.half_worth_at:,} ranks on, another one brings less than half of"
            " itself."
        )
    best = max(forecast.points, key=lambda point: point.samples_per_s)
    factor = best.samples_per_s / forecast.single_per_s
    return (
        "Do not scale: a second rank brings less than half of itself. At best"
        f" {best.world:,} ranks make {_rate(factor)} times the {forecast.unit}/s of one."
    )


def _costs(costs: Sequence[Cost]) -> Iterator[str]:
    has_money = costs[0].money is not None
    head = f"{'ranks':>7}{'hours':>12}{'interval':>24}{'rank hours':>14}"
    yield head + (f"{'money':>14}" if has_money else "")
    for cost in costs:
        interval = f"{_hours(cost.low_hours)} - {_hours(cost.high_hours)}"
        row = f"{cost.world:>7,}{_hours(cost.hours):>12}{interval:>24}{_hours(cost.gpu_hours):>14}"
        yield row + (f"{cost.money:>14,.2f}" if cost.money is not None else "")


def _rate(value: float) -> str:
    """Return a rate with three digits, or whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _COLUMNS)
