"""``paceline forecast``: from the words of the command line to what it prints and writes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.errors import SetupError, option_contradicted, option_invalid
from paceline.measure import bench_file, network_points
from paceline.measure.forecast import prediction, text
from paceline.measure.forecast.bench_data import unreadable
from paceline.rundir import files
from paceline.rundir.files import RunDir
from paceline.text import quoting

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
    costs = [] if samples is None else text.costs(forecast, samples * (epochs or 1.0), price)
    result = {**forecast.to_json(), "costs": [asdict(row) for row in costs]}
    write(run_dir, result)
    if as_json:
        return json.dumps(result, indent=1)
    return text.render(forecast, costs)


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
        files.write_whole(run_dir.forecast, json.dumps(forecast) + "\n")


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
