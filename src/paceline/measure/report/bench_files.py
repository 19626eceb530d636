"""Read what ``paceline bench`` and ``paceline forecast`` left in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from paceline.measure.report.facts import Bench, Forecast, ForecastPoint, NetworkPoint, World
from paceline.measure.report.untrusted import OTHER_CONTENT, finite, positive
from paceline.rundir import files

BENCH, FORECAST = "bench.json", "forecast.json"
_VERSION = 1
_MOST_BYTES = 1 << 28  # every step of every rank
_Parsed = TypeVar("_Parsed")


def read_bench(folder: Path, notes: list[str]) -> Bench | None:
    """Return the bench of a folder; None without one, or with a note if it is unreadable."""
    return _read(folder / BENCH, parse_bench, notes)


def read_forecast(folder: Path, notes: list[str]) -> Forecast | None:
    """Return the forecast of a folder; None without one, or with a note if it is unreadable."""
    return _read(folder / FORECAST, parse_forecast, notes)


def _read(path: Path, parse: Callable[[Any], _Parsed], notes: list[str]) -> _Parsed | None:
    try:
        return parse(files.read_json(path, most_bytes=_MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error}")
    except OTHER_CONTENT as error:
        notes.append(f"{path.name} has another form than this version reads: {error!r}")
    return None


def parse_bench(values: Mapping[str, Any]) -> Bench:
    """Return a bench from its JSON. Pure.

    Raises:
        ValueError: The version is unknown, or a time is not a positive number.
        KeyError: A field is missing.
    """
    if values["version"] != _VERSION:
        raise ValueError(f"version {values['version']}")
    worlds = [_world(int(ranks), world) for ranks, world in values["worlds"].items()]
    network = values.get("network") or {"points": []}
    return Bench(
        command=tuple(str(word) for word in values["command"]),
        scaling=str(values["scaling"]),
        backend=str(values["backend"]),
        warmup_steps=int(values["warmup_steps"]),
        worlds=tuple(sorted(worlds, key=lambda world: world.ranks)),
        network=tuple(_network_point(point) for point in network["points"]),
    )


def _world(ranks: int, values: Mapping[str, Any]) -> World:
    rounds = [list(steps.values()) for steps in values["rounds"]]
    own_s: dict[int, list[float]] = {}
    for steps in rounds:
        for step in steps:
            for rank, durations in step.items():
                own_s.setdefault(int(rank), []).append(sum(durations[:-1]) * 1e-6)
    return World(
        ranks=ranks,
        num_nodes=int(values["num_nodes"]),
        samples_per_step=positive(values["samples_per_step"]),
        step_s=[[_step_s(step) for step in steps] for steps in rounds],
        own_s={rank: tuple(times) for rank, times in sorted(own_s.items())},
    )


def _step_s(step: Mapping[str, Any]) -> float:
    """Return the seconds of a step: until the last rank's gradients, and its exchange.

    See ``stage_times.account``: the exchange of the other ranks contains their waiting.
    """
    last = max(step.values(), key=lambda durations: sum(durations[:-1]))
    return positive(sum(last)) * 1e-6


def _network_point(values: Mapping[str, Any]) -> NetworkPoint:
    return NetworkPoint(
        size_bytes=int(values["bytes"]),
        seconds=positive(values["seconds"]),
        low_s=positive(values["low"]),
        high_s=positive(values["high"]),
        bus_bytes_per_s=finite(values["bus_bytes_per_s"]),
    )


def parse_forecast(values: Mapping[str, Any]) -> Forecast:
    """Return a forecast from its JSON. Pure.

    Raises:
        KeyError: A field is missing.
    """
    points = [
        ForecastPoint(
            int(point["world"]),
            positive(point["samples_per_s"]),
            finite(point["low"]),
            finite(point["high"]),
        )
        for point in values["points"]
    ]
    half_worth_at = values.get("half_worth_at")
    return Forecast(
        points=tuple(sorted(points, key=lambda point: point.ranks)),
        half_worth_at=None if half_worth_at is None else int(half_worth_at),
        notes=tuple(str(note) for note in values.get("notes", ())),
    )
