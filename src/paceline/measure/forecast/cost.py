"""GPU hours and money at a forecast throughput. Pure."""

from __future__ import annotations

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
