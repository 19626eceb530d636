"""Summarise the counters and timed steps of a successful run as figures and lines. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.launch.monitor import stage_times
from paceline.launch.monitor.stage_times import StepTime

# Parts of a step below this share are not printed.
_LEAST_SHARE = 0.005
# Shorter waits cannot be tuned away: a worker takes about as long to send a batch to its rank.
_LEAST_DATA_S = 0.001
_STAGE_WORDS = {
    "optimizer": "from the end of backward to the end of the optimizer step",
    "other": "the script's code between an optimizer step and the next batch",
    "data": "waiting for its DataLoader",
    "forward": "from a batch to the begin of backward",
    "backward": "its own backward",
}


def summarise(
    counters: Sequence[Mapping[str, Any]], *, seconds: float, step_time: StepTime | None = None
) -> dict[str, Any]:
    """Return the figures of a run that succeeded.

    Args:
        counters: ``rank, host, steps, seconds, data_s, own_s`` of every rank.
        seconds: Duration of the whole run.
        step_time: Where the time of a step went, if enough steps were timed.
    """
    stepping = [entry for entry in counters if entry["steps"] > 1 and entry["seconds"] > 0]
    summary: dict[str, Any] = {"ranks": len(counters), "seconds": round(seconds, 2), "steps": 0}
    if not stepping:
        return summary
    own = {entry["rank"]: entry["own_s"] / (entry["steps"] - 1) for entry in stepping}
    median = statistics.median(own.values())
    slowest = max(own, key=lambda rank: own[rank])
    hosts = {entry["rank"]: entry["host"] for entry in stepping}
    return summary | {
        "steps": max(entry["steps"] for entry in stepping),
        "steps_per_s": statistics.median(
            (entry["steps"] - 1) / entry["seconds"] for entry in stepping
        ),
        "data_share": statistics.median(entry["data_s"] / entry["seconds"] for entry in stepping),
        "slowest_rank": slowest,
        "slowest_host": hosts[slowest],
        "slowest_ratio": own[slowest] / median if median else 1.0,
        "step": step_time and stage_times.describe(step_time, hosts),
    }


def render(summary: Mapping[str, Any], *, run_dir: str) -> list[str]:
    """Return the last three or four lines of a run that succeeded."""
    ranks = f"{summary['ranks']} rank{'s' if summary['ranks'] != 1 else ''}"
    if not summary["steps"]:
        return [
            f"done: {ranks} in {summary['seconds']:.1f} s, no optimizer steps seen",
            f"run folder {run_dir}",
        ]
    done = (
        f"done: {ranks}, {summary['steps']} steps in {summary['seconds']:.1f} s, "
        f"{summary['steps_per_s']:.1f} steps/s a rank"
    )
    speed = step_lines(summary["step"], summary["ranks"]) if summary["step"] else _rates(summary)
    return [done, *speed, f"run folder {run_dir}"]


def _rates(summary: Mapping[str, Any]) -> list[str]:
    """Return what is known where too few steps were timed."""
    line = f"waiting for data: {summary['data_share']:.1%} of the time"
    if summary["ranks"] > 1:
        line += (
            f" · slowest rank: {summary['slowest_rank']} on {summary['slowest_host']}, "
            f"{summary['slowest_ratio']:.2f}x the median outside backward"
        )
    return [line]


def step_lines(step: Mapping[str, Any], num_ranks: int) -> list[str]:
    """Return where the time of a step went, and the rank that the others wait for, if proven.

    Args:
        step: What ``stage_times.describe`` returned.
        num_ranks: Number of ranks.
    """
    named = step["named"]
    parts = {
        "data": step["stages"]["data"],
        "compute": sum(step["stages"][stage] for stage in stage_times.COMPUTE),
        "other code": step["stages"]["other"],
        "exposed communication": step["exchange"],
        _waiting(named): step["waiting"],
    }
    if num_ranks == 1:
        parts["compute"] += parts.pop("exposed communication")
    shares = {name: seconds / step["seconds"] for name, seconds in parts.items()}
    words = [f"{name} {share:.0%}" for name, share in shares.items() if share >= _LEAST_SHARE]
    lines = [f"step {_ms(step['seconds'])}: {', '.join(words)}"]
    if named:
        lines.append(
            f"rank {named['rank']} on {named['host']} takes {_ms(named['seconds'])} longer a step"
            f" than the others: {_STAGE_WORDS[named['stage']]}"
        )
    elif is_data_bound(step):
        lines.append(
            f"waiting for data {shares['data']:.0%} of a step: paceline tune measures faster"
            " loader settings"
        )
    return lines


def is_data_bound(step: Mapping[str, Any]) -> bool:
    """Return whether steps wait for data longer than they compute.

    Args:
        step: What ``stage_times.describe`` returned.
    """
    data_s = step["stages"]["data"]
    compute_s = sum(step["stages"][stage] for stage in stage_times.COMPUTE)
    return bool(data_s >= _LEAST_DATA_S and data_s > compute_s)


def _waiting(named: Mapping[str, Any] | None) -> str:
    if named is None:
        return "waiting for the last rank"
    return f"waiting for rank {named['rank']} ({named['host']})"


def _ms(seconds: float) -> str:
    """Return a time in milliseconds with three digits."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds * 1000:.0f} ms"
