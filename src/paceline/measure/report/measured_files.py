"""Read what a run folder says of the run's speed, bench and forecast; doubt every value."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from paceline.launch.monitor import step_parts
from paceline.measure.bench_file import BenchFile, WorldBench
from paceline.measure.report.facts import (
    BenchFacts,
    ForecastFacts,
    ForecastPoint,
    NetworkPoint,
    RankTime,
    SpeedPoint,
    StepSplit,
    WorldFacts,
)
from paceline.measure.report.speed import scaling
from paceline.rundir import files
from paceline.rundir.files import RunDir

# What content of another form raises where its fields are taken.
OTHER_CONTENT = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    ZeroDivisionError,
    OverflowError,
    RecursionError,
)


def finite(value: Any) -> float:
    """Return a number.

    Raises:
        ValueError: It is infinite or NaN, which JSON has no words for and Python's reader accepts.
        TypeError: It is not a number.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number


def positive(value: Any) -> float:
    """Return a number above 0.

    Raises ValueError if it is 0, negative, infinite or NaN. Raises TypeError if it is not a number.
    """
    number = finite(value)
    if number <= 0:
        raise ValueError(f"{number} is not above 0")
    return number


_MOST_BYTES = 1 << 26


def read_log(run_dir: RunDir, num_ranks: int) -> tuple[list[SpeedPoint], list[str]]:
    """Return the speed of a run over time, and sentences about what could not be read."""
    try:
        lines = files.read_bytes(run_dir.speed_log, most_bytes=_MOST_BYTES).splitlines()
    except FileNotFoundError:
        reason = "the run was shorter than 5 s, or was started with --no-probe"
        return [], [f"no speed over time: {reason}"]
    except (OSError, ValueError) as error:
        return [], [f"{run_dir.speed_log.name} cannot be read: {error}"]
    points = [point for line in lines if (point := _point(line, num_ranks)) is not None]
    # The last line of a run that lives may be half written.
    num_unreadable = len(lines) - len(points)
    notes = [f"speed.jsonl: {num_unreadable} of {len(lines)} lines are not readable"]
    return points, notes if num_unreadable else []


def _point(line: bytes, num_ranks: int) -> SpeedPoint | None:
    """Return the speed of a line; None if it is cut off or of another form."""
    try:
        values = json.loads(line)
        loss = values.get("loss")
        samples = finite(values["samples_per_batch"]) * finite(values["batches_per_step"])
        return SpeedPoint(
            attempt=int(values["attempt"]),
            time_s=finite(values["time_s"]),
            steps=int(values["steps"]),
            # Infinite and NaN too: such a loss is what a reader looks for.
            loss=None if loss is None else float(loss),
            samples_per_step=samples,
            split=split_of(values.get("step"), num_ranks),
            steps_per_s=finite(values.get("steps_per_s", 0.0)),
            memory_bytes=finite(values.get("memory_bytes", 0.0)),
            gpu_memory_bytes=finite(values.get("gpu_memory_bytes", 0.0)),
        )
    except OTHER_CONTENT:
        return None


def split_of(
    step: Mapping[str, Any] | None,  # what ``stage_times.describe`` returned
    num_ranks: int,  # number of ranks
) -> StepSplit | None:
    """Return the split of a step that a launcher described; None if there is none. Pure."""
    try:
        if not step:
            return None
        parts = step_parts.parts(step, num_ranks)
        return StepSplit(
            seconds=positive(step["seconds"]),
            parts={name: finite(seconds) for name, seconds in parts.items()},
            late_rank=step_parts.late_rank(step) if step.get("named") else "",
            timed_steps=int(step["timed_steps"]),
            mean_s=finite(step.get("mean", 0.0)),
            remarks=tuple(step_parts.remarks({**step, "named": None})),
        )
    except OTHER_CONTENT:
        return None


def read_ranks(run_dir: RunDir, notes: list[str]) -> tuple[list[RankTime], Mapping[str, int]]:
    """Return what a step costs each rank, and the number of GPUs by host.

    Both are empty without ``speed.json``, or with a note if it is unreadable.
    """
    return _read(run_dir.speed, _parse_ranks, notes, most_bytes=_MOST_BYTES) or ([], {})


def _parse_ranks(speed: Mapping[str, Any]) -> tuple[list[RankTime], Mapping[str, int]]:
    ranks = [_rank(values) for values in speed["ranks"] if values["steps"] > 1]
    return ranks, Counter(str(gpu["host"]) for gpu in speed["gpus"])


def _rank(values: Mapping[str, Any]) -> RankTime:
    num_intervals = int(values["steps"]) - 1  # the first step has no beginning
    return RankTime(
        rank=int(values["rank"]),
        host=str(values["host"]),
        own_s=finite(values["own_s"]) / num_intervals,
        data_s=finite(values["data_s"]) / num_intervals,
    )


_MOST_BENCH_BYTES = 1 << 28  # every step of every rank
UNKNOWN_SAMPLES = (
    "the samples of a step are unknown, because the batches do not come from a DataLoader of torch"
)
_Parsed = TypeVar("_Parsed")


def read_bench(run_dir: RunDir, notes: list[str]) -> BenchFacts | None:
    """Return the bench of a folder; None without one, or with a note if it is unreadable."""
    bench = _read(run_dir.bench, parse_bench, notes)
    if bench is not None and not bench.figures and any(world.own_s for world in bench.worlds):
        notes.append(f"no scaling: {UNKNOWN_SAMPLES}")
    return bench


def read_forecast(run_dir: RunDir, notes: list[str]) -> ForecastFacts | None:
    """Return the forecast of a folder; None without one, or with a note if it is unreadable."""
    return _read(run_dir.forecast, parse_forecast, notes)


def _read(
    path: Path,
    parse: Callable[[Any], _Parsed],
    notes: list[str],
    *,
    most_bytes: int = _MOST_BENCH_BYTES,
) -> _Parsed | None:
    try:
        return parse(files.read_json(path, most_bytes=most_bytes))
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error}")
    except OTHER_CONTENT as error:
        notes.append(f"{path.name} has another form than this version reads: {error!r}")
    return None


def parse_bench(values: Mapping[str, Any]) -> BenchFacts:
    """Return a bench from its JSON. Pure.

    Raises ValueError if the version is unknown, or a time is not a positive number. Raises KeyError
    if a field is missing.
    """
    bench = BenchFile.from_json(values)
    network = bench.network or {"points": []}
    return BenchFacts(
        command=bench.command,
        scaling=bench.scaling,
        backend=bench.backend,
        warmup_steps=bench.warmup_steps,
        worlds=tuple(_world(ranks, world) for ranks, world in sorted(bench.worlds.items())),
        network=tuple(_network_point(point) for point in network["points"]),
        figures=tuple(scaling(bench)),
    )


def _world(ranks: int, world: WorldBench) -> WorldFacts:
    own_s: dict[int, list[float]] = {}
    for steps in world.rounds:
        for step in steps.values():
            for rank, durations in step.items():
                # without the last part, the exchange, in which ranks wait for each other
                own_s.setdefault(rank, []).append(sum(durations[:-1]) * 1e-9)
    return WorldFacts(
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


def parse_forecast(values: Mapping[str, Any]) -> ForecastFacts:
    """Return a forecast from its JSON. Pure.

    Raises KeyError if a field is missing.
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
    return ForecastFacts(
        points=tuple(sorted(points, key=lambda point: point.ranks)),
        half_worth_at=None if half_worth_at is None else int(half_worth_at),
        notes=tuple(str(note) for note in values.get("notes", ())),
    )
