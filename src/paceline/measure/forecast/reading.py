"""Find the bench of a run, read measurements of the network, and write the forecast."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from paceline.errors import SetupError
from paceline.measure import network_points
from paceline.measure.forecast.bench_data import unreadable
from paceline.rundir import files
from paceline.rundir.files import RunDir
from paceline.text import quoting

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
