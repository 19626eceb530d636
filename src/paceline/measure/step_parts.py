"""Split the time of a step into the parts that ``top`` and ``report`` show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# From bottom to top of a stack: what a rank does itself, then what it waits for.
PARTS = ("data", "forward", "backward", "optimizer", "other code", "communication", "waiting")


def parts(step: Mapping[str, Any], num_ranks: int) -> dict[str, float]:
    """Return the seconds of each part, in the order of ``PARTS``; they add up to the step.

    A single rank exchanges no gradients: what its backward does last is computation.

    Args:
        step: What ``stage_times.describe`` returned.
        num_ranks: Number of ranks.
    """
    stages = step["stages"]
    seconds = {
        "data": stages["data"],
        "forward": stages["forward"],
        "backward": stages["backward"],
        "optimizer": stages["optimizer"],
        "other code": stages["other"],
        "communication": step["exchange"],
        "waiting": step["waiting"],
    }
    if num_ranks == 1:
        seconds["backward"] += seconds.pop("communication")
        seconds.pop("waiting")
    return seconds


def late_rank(named: Mapping[str, Any]) -> str:
    """Return the sentence about a rank that is proven to be late.

    Args:
        named: The entry ``named`` of what ``stage_times.describe`` returned.
    """
    return (
        f"rank {named['rank']} on {named['host']} takes {named['seconds'] * 1000:.3g} ms longer"
        f" in {named['stage']} than the others"
    )
