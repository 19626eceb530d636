"""``paceline forecast``: from the words of the command line to what it prints and writes."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import SetupError, option_contradicted, option_invalid
from paceline.measure import bench_file, network_points
from paceline.measure.forecast import prediction
from paceline.measure.forecast.bench_data import unreadable
from paceline.measure.forecast.prediction import Forecast, Point
from paceline.rundir import files, owned
from paceline.rundir.files import RunDir
from paceline.text import quoting
from paceline.text.json_text import json_text

_MOST_RANKS = 1_000_000


def answer(
    run: str,  # run folder of a bench; empty for the newest
    *,
    as_json: bool = False,
    worlds: str = "",  # ``N,N,...``; empty for powers of two up to 4,096
    networks: Sequence[str] = (),  # files with what ``bench network --json`` has printed
    gpus_per_node: int | None = None,  # None as measured
    samples: float | None = None,  # of an epoch; None to leave costs out
    epochs: float | None = None,  # None for 1
    price: float | None = None,  # of a GPU hour; None to leave money out
) -> str:
    """Return what ``paceline forecast`` prints.

    Raises UsageError if a value is invalid, or has no effect; SetupError if there is no bench, or
    it is not enough.
    """
    if samples is None:
        _require_samples(epochs=epochs, price=price)
    run_dir = find(run)
    forecast = prediction.predict(
        bench_file.read(run_dir),
        worlds=world_sizes(worlds) if worlds else prediction.WORLDS,
        networks=[network(file) for file in networks],
        ranks_per_node=gpus_per_node,
    )
    if samples is not None and forecast.unit != "samples":
        raise option_contradicted(
            "--samples has no effect: the bench could not count the samples of a step",
            fix="paceline forecast without --samples: it shows batches/s",
        )
    cost_rows = [] if samples is None else costs(forecast, samples * (epochs or 1.0), price)
    result = {**forecast.to_json(), "costs": [asdict(row) for row in cost_rows]}
    write(run_dir, result)
    if as_json:
        return json_text(result)
    return render(forecast, cost_rows)


def _require_samples(**options: float | None) -> None:
    """Refuse options that have no effect without ``--samples``."""
    for name, value in options.items():
        if value is not None:
            raise option_contradicted(
                f"--{name} has no effect without --samples",
                fix=f"paceline forecast --samples SAMPLES-OF-AN-EPOCH --{name} {value:g}",
            )


def world_sizes(words: str) -> list[int]:
    """Return the world sizes of ``2,4,8``; raise UsageError if one is not a number of ranks."""
    sizes = []
    for word in words.split(","):
        size = int(word) if word.strip().isdecimal() and len(word) < 10 else 0
        if not 2 <= size <= _MOST_RANKS:
            what = f"--world {words}: {word!r} is not a number of ranks from 2 to {_MOST_RANKS:,}"
            raise option_invalid(what, fix="paceline forecast --world 8,16,32")
        sizes.append(size)
    return sizes


_MOST_BYTES = 1 << 24


def write(run_dir: RunDir, forecast: dict[str, Any]) -> None:
    """Write a forecast into the run folder of its bench, where ``paceline report`` finds it.

    Someone else's folder may not be writable, and the forecast is printed anyway.
    """
    with contextlib.suppress(OSError):
        owned.write_whole(run_dir.forecast, json.dumps(forecast) + "\n")


def network(file: str) -> dict[str, Any]:
    """Return what ``bench network --json`` has written to a file."""
    try:
        values = files.read_json(Path(file), most_bytes=_MOST_BYTES)
        if values["kind"] == "network" and values["version"] == network_points.VERSION:
            return dict(values)
        reason = f"kind {values['kind']!r}, version {values['version']!r}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise SetupError.of(
        "input-unreadable",
        f"{file} is not a measurement of the network",
        evidence=(reason,),
        fix=f"paceline bench network --json > {quoting.word(file)}",
    )


def find(run: str) -> RunDir:
    """Return the run folder of a bench.

    ``run`` is a run folder, the name of one below ``paceline-runs``, or the path of a bench.json;
    empty for the newest bench there. Raises SetupError if the folder does not exist, or no run is a
    bench.
    """
    if not run:
        benches = [
            file
            for folder in files.run_folders()
            for file in folder.glob("*/" + RunDir(folder).bench.name)
        ]
        if not benches:
            raise SetupError(unreadable("no run in paceline-runs is a bench"))
        return RunDir(max(benches, key=lambda file: file.stat().st_mtime).parent)
    for place in (Path(run), *(folder / run for folder in files.run_folders())):
        if place.is_dir():
            return RunDir(place)
        if place.is_file() and place.name == RunDir(place.parent).bench.name:
            return RunDir(place.parent)
    raise SetupError(unreadable(f"{run} is not a run folder"))


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
