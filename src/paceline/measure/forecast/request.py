"""``paceline forecast``: from the words of the command line to what it prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict

from paceline.errors import Finding, UsageError, option_contradicted
from paceline.measure import bench_file
from paceline.measure.forecast import cost, prediction, reading, text

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bit(?:/s)?|bps)", re.IGNORECASE)
_MOST_RANKS = 1_000_000


def answer(
    run: str,  # run folder of a bench; empty for the newest
    *,
    as_json: bool = False,
    worlds: str = "",  # ``N,N,...``; empty for powers of two up to 4,096
    networks: Sequence[str] = (),  # files with what ``bench network --json`` has printed
    gpus_per_node: int | None = None,  # None as measured
    link: str | None = None,  # between nodes; None as measured
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
    run_dir = reading.find(run)
    forecast = prediction.predict(
        bench_file.read(run_dir),
        worlds=world_sizes(worlds) if worlds else prediction.WORLDS,
        networks=[reading.network(file) for file in networks],
        ranks_per_node=gpus_per_node,
        link_bits_per_s=None if link is None else bits_per_s(link),
    )
    if samples is not None and forecast.unit != "samples":
        raise UsageError(_without_samples())
    costs = [] if samples is None else cost.costs(forecast, samples * (epochs or 1.0), price)
    result = {**forecast.to_json(), "costs": [asdict(row) for row in costs]}
    reading.write(run_dir, result)
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


def _without_samples() -> Finding:
    return Finding(
        "option-contradicted",
        "--samples has no effect: the bench could not count the samples of a step",
        where="command line",
        fix="paceline forecast without --samples: it shows batches/s",
    )


def world_sizes(words: str) -> list[int]:
    """Return the world sizes of ``2,4,8``; raise UsageError if one is not a number of ranks."""
    sizes = []
    for word in words.split(","):
        size = int(word) if word.strip().isdecimal() and len(word) < 10 else 0
        if not 2 <= size <= _MOST_RANKS:
            what = f"--world {words}: {word!r} is not a number of ranks from 2 to {_MOST_RANKS:,}"
            raise UsageError(_invalid(what, "paceline forecast --world 8,16,32"))
        sizes.append(size)
    return sizes


def bits_per_s(rate: str) -> float:
    """Return the rate of a link such as ``100Gbit`` or ``25 Gbit/s``, in bits per second.

    Raises UsageError if it has no number, or no unit.
    """
    match = _RATE.fullmatch(rate.strip())
    value = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not value:
        what = f"--link {rate!r} is not a rate in bits per second"
        raise UsageError(_invalid(what, "paceline forecast --link 100Gbit"))
    return value


def _invalid(what: str, fix: str) -> Finding:
    return Finding("option-invalid", what, where="command line", fix=fix)
