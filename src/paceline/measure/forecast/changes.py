"""What changes of a script are worth, by the fitted model. Pure.

Each is compared with the model as it is, draw by draw, so that what is uncertain in both cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.measure.forecast.fitting import Model

CONFIDENCE = 0.95
_COMPRESSION = 0.5
_ACCUMULATION = 4
_FASTER_LINK = 4.0
_LARGER_BATCH = 2.0

Rate = Callable[[Model, int], float]  # samples per second with a change


@dataclass(frozen=True)
class Change:
    """What a change is worth at one world size."""

    name: str  # the change
    factor: float  # throughput with it, relative to without
    low: float  # lower end of its interval
    high: float  # upper end


def compare(estimate: Model, draws: Sequence[Model], world: int) -> list[Change]:
    """Return what changes are worth for ``world`` ranks."""
    rates: dict[str, Rate] = {
        "gradients in 16 bits instead of 32": _compressed,
        f"gradients accumulated over {_ACCUMULATION} batches": _accumulated,
        f"a link {_FASTER_LINK:g} times as fast": _on_faster_link,
    }
    if estimate.fixed_s is None:
        rates[f"a batch {_LARGER_BATCH:g} times as large"] = _with_larger_batch
    return [_change(name, rate, estimate, draws, world) for name, rate in rates.items()]


def _change(name: str, rate: Rate, estimate: Model, draws: Sequence[Model], world: int) -> Change:
    def factor(model: Model) -> float:
        return rate(model, world) / model.samples_per_s(world)

    value = factor(estimate)
    low, high = ends([factor(model) for model in draws])
    return Change(name, value, min(low, value), max(high, value))


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval that holds ``CONFIDENCE`` of the values."""
    ordered = sorted(values)
    tail = (1 - CONFIDENCE) / 2
    last = len(ordered) - 1
    return ordered[int(tail * last)], ordered[round((1 - tail) * last)]


def _compressed(model: Model, world: int) -> float:
    """Half of the bytes. What packing and unpacking them costs is not included."""
    exchange = model.exchange.scaled(_COMPRESSION)
    return replace(model, exchange=exchange).samples_per_s(world)


def _accumulated(model: Model, world: int) -> float:
    """One exchange for several batches. The optimizer is counted for each, which is too much."""
    exposed_s = model.exposed_s(world)
    own_s = model.step_s(world) - exposed_s
    return _ACCUMULATION * model.samples(world) / (_ACCUMULATION * own_s + exposed_s)


def _on_faster_link(model: Model, world: int) -> float:
    network = model.network.faster(world, _FASTER_LINK)
    return replace(model, network=network).samples_per_s(world)


def _with_larger_batch(model: Model, world: int) -> float:
    """A larger batch takes at most proportionally longer, and exchanges as much."""
    return replace(model, batch_factor=_LARGER_BATCH).samples_per_s(world)
