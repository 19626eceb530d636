"""Summarise the counters of a successful run as figures and three lines. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def summarise(counters: Sequence[Mapping[str, Any]], *, seconds: float) -> dict[str, Any]:
    """Return the figures of a run that succeeded.

    Args:
        counters: ``rank, host, steps, seconds, data_s, own_s`` of every rank.
        seconds: Duration of the whole run.
    """
    stepping = [entry for entry in counters if entry["steps"] > 1 and entry["seconds"] > 0]
    summary: dict[str, Any] = {"ranks": len(counters), "seconds": round(seconds, 2), "steps": 0}
    if not stepping:
        return summary
    own = {entry["rank"]: entry["own_s"] / (entry["steps"] - 1) for entry in stepping}
    median = statistics.median(own.values())
    slowest = max(own, key=lambda rank: own[rank])
    return summary | {
        "steps": max(entry["steps"] for entry in stepping),
        "steps_per_s": statistics.median(
            (entry["steps"] - 1) / entry["seconds"] for entry in stepping
        ),
        "data_share": statistics.median(entry["data_s"] / entry["seconds"] for entry in stepping),
        "slowest_rank": slowest,
        "slowest_host": next(entry["host"] for entry in stepping if entry["rank"] == slowest),
        "slowest_ratio": own[slowest] / median if median else 1.0,
    }


def render(summary: Mapping[str, Any], *, run_dir: str) -> list[str]:
    """Return the last three lines of a run that succeeded."""
    ranks = f"{summary['ranks']} rank{'s' if summary['ranks'] != 1 else ''}"
    if not summary["steps"]:
        return [
            f"done: {ranks} in {summary['seconds']:.1f} s, no optimizer steps seen",
            f"run folder {run_dir}",
        ]
    lines = [
        (
            f"done: {ranks}, {summary['steps']} steps in {summary['seconds']:.1f} s, "
            f"{summary['steps_per_s']:.1f} steps/s a rank"
        ),
        f"waiting for data: {summary['data_share']:.1%} of the time",
    ]
    if summary["ranks"] > 1:
        lines[1] += (
            f" · slowest rank: {summary['slowest_rank']} on {summary['slowest_host']}, "
            f"{summary['slowest_ratio']:.2f}x the median outside backward"
        )
    return [*lines, f"run folder {run_dir}"]
