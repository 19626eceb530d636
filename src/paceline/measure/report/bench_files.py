"""Read what ``paceline bench`` and ``paceline forecast`` left in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from paceline.measure.bench_file import BenchFile, WorldBench
from paceline.measure.report.facts import Bench, Forecast, ForecastPoint, NetworkPoint, World
from paceline.measure.report.scaling import scaling
from paceline.measure.report.untrusted import OTHER_CONTENT, finite, positive
from paceline.rundir import files
from paceline.rundir.files import RunDir

_MOST_BYTES = 1 << 28  # every step of every rank
UNKNOWN_SAMPLES = (
    "the samples of a step are unknown, because the batches do not come from a DataLoader of torch"
)
_Parsed = TypeVar("_Parsed")


def read_bench(run_dir: RunDir, notes: list[str]) -> Bench | None:
    """Return the bench of a folder; None without one, or with a note if it is unreadable."""
    bench = _read(run_dir.bench, parse_bench, notes)
    if bench is not None and not bench.figures and any(world.own_s for world in bench.worlds):
        notes.append(f"no scaling: {UNKNOWN_SAMPLES}")
    return bench


def read_forecast(run_dir: RunDir, notes: list[str]) -> Forecast | None:
    """Return the forecast of a folder; None without one, or with a note if it is unreadable."""
    return _read(run_dir.forecast, parse_forecast, notes)


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
    bench = BenchFile.from_json(values)
    network = bench.network or {"points": []}
    return Bench(
        command=bench.command,
        scaling=bench.scaling,
        backend=bench.backend,
        warmup_steps=bench.warmup_steps,
        worlds=tuple(_world(ranks, world) for ranks, world in sorted(bench.worlds.items())),
        network=tuple(_network_point(point) for point in network["points"]),
        figures=tuple(scaling(bench)),
    )


def _world(ranks: int, world: WorldBench) -> World:
    own_s: dict[int, list[float]] = {}
    for steps in world.rounds:
        for step in steps.values():
            for rank, durations in step.items():
                own_s.setdefault(rank, []).append(sum(durations[:-1]) * 1e-9)
    return World(
        ranks=ranks,
        num_nodes=world.num_nodes,
        own_s={rank: tuple(times) for rank, times in sorted(own_s.items())},
    )


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
