"""Find the bench of a run, read it, and write its forecast beside it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from paceline.errors import SetupError
from paceline.measure.forecast.bench_data import unreadable
from paceline.rundir import files

FILE = "bench.json"
FORECAST = "forecast.json"
_MOST_BYTES = 1 << 28


def read(file: Path) -> dict[str, Any]:
    """Return the content of a bench's file.

    Raises:
        SetupError: There is no bench, or it is damaged.
    """
    try:
        values = files.read_json(file, most_bytes=_MOST_BYTES)
    except FileNotFoundError:
        what = f"{files.display_path(file.parent)} holds no {FILE}"
        raise SetupError(unreadable(what)) from None
    except (OSError, ValueError) as error:
        what = f"{files.display_path(file)} cannot be read: {error}"
        raise SetupError(unreadable(what)) from None
    if not isinstance(values, dict):
        raise SetupError(unreadable(f"{files.display_path(file)} is not a bench"))
    return values


def write(bench: Path, forecast: dict[str, Any]) -> None:
    """Write a forecast beside its bench, where ``paceline report`` finds it.

    Someone else's folder may not be writable, and the forecast is printed anyway.
    """
    with contextlib.suppress(OSError):
        files.write_whole(bench.with_name(FORECAST), json.dumps(forecast) + "\n")


def find(run: str) -> Path:
    """Return the file of a bench.

    Args:
        run: A run folder, the name of one below ``paceline-runs``, or the file; empty for the
            newest bench there.

    Raises:
        SetupError: There is no such folder, or no bench.
    """
    if not run:
        benches = [file for folder in files.run_folders() for file in folder.glob(f"*/{FILE}")]
        if not benches:
            raise SetupError(unreadable(f"no run in paceline-runs holds a {FILE}"))
        return max(benches, key=lambda file: file.stat().st_mtime)
    for place in (Path(run), *(folder / run for folder in files.run_folders())):
        if place.is_dir():
            return place / FILE
        if place.is_file():
            return place
    raise SetupError(unreadable(f"there is no run folder {run}"))
