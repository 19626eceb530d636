"""Summarise the counters and timed steps of a successful run as figures and lines. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import Finding
from paceline.launch.monitor import bottleneck, stage_times, step_parts
from paceline.launch.monitor.stage_times import StepTime
from paceline.text.wording import milliseconds

# Parts of a step below this share are not printed.
_LEAST_SHARE = 0.005
# A fact, not a finding: ranks may be apart on purpose, or exchange gradients in another way.
_APART = (
    "these ranks had no process group of torch.distributed: without another way to exchange"
    " gradients, each trained a model of its own"
)


def summarise(
    counters: Sequence[Mapping[str, Any]], *, seconds: float, step_time: StepTime | None = None
) -> dict[str, Any]:
    """Return the figures of a run that succeeded.

    Args:
        counters: ``rank, host, steps, seconds, data_s, own_s`` of every rank, and
            ``never_grouped``.
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
        "ungrouped": len(stepping) > 1 and all(entry["never_grouped"] for entry in counters),
        "checks": min(entry.get("checks", 0) for entry in stepping),
        "checked_step": min(entry.get("checked_step", 0) for entry in stepping),
    }


def render(
    summary: Mapping[str, Any], *, run_dir: str, script: str = "", hint: Finding | None = None
) -> list[str]:
    """Return the last lines of a run that succeeded: three to five of them, and a hint.

    Args:
        summary: What ``summarise`` returned.
        run_dir: The run folder.
        script: The script with its arguments, to paste; empty if unknown.
        hint: What most steps waited for; see ``monitor.bottleneck``.
    """
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
    if summary["step"] is None:
        speed = _rates(summary)
    else:
        speed = step_lines(summary["step"], summary["ranks"])
        speed += [hint.render()] if hint is not None else _advice(summary, script)
    apart = [_APART] if summary["ungrouped"] else []
    return [done, *apart, *speed, f"run folder {run_dir}"]


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
    words = {"communication": "exposed communication", "waiting": _waiting(named)}
    parts = [
        f"{words.get(part, part)} {seconds / step['seconds']:.0%}"
        for part, seconds in step_parts.coarse(step, num_ranks).items()
        if seconds >= _LEAST_SHARE * step["seconds"]
    ]
    line = f"step {milliseconds(step['seconds'])}: {', '.join(parts)}"
    return [line, step_parts.late_rank(named)] if named else [line]


def _waiting(named: Mapping[str, Any] | None) -> str:
    if named is None:
        return "waiting for the last rank"
    return f"waiting for rank {named['rank']} ({named['host']})"


def _advice(summary: Mapping[str, Any], script: str) -> list[str]:
    """Return a line about waiting for data, of a run that was too short for a hint."""
    step = summary["step"]
    wait = bottleneck.longest_wait(step_parts.coarse(step, summary["ranks"]))
    if wait != bottleneck.DATA:
        return []
    return [f"{bottleneck.waiting(wait, step)}: {bottleneck.tuning(script)}"]
