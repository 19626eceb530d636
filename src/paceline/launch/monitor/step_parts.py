"""Split the time of a step into the parts that people see, in seven parts or in five. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.launch.monitor.stage_times import COMPUTE
from paceline.text.wording import milliseconds

# From bottom to top of a stack: what a rank does itself, then what it waits for.
PARTS = ("data", "forward", "backward", "optimizer", "other code", "communication", "waiting")
STAGE_WORDS = {
    "optimizer": "its optimizer step",
    "other": "code between an optimizer step and the next batch",
    "data": "waiting for its DataLoader",
    "forward": "its forward",
    "backward": "its backward",
}


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


def coarse(step: Mapping[str, Any], num_ranks: int) -> dict[str, float]:
    """Return the seconds of data, compute, other code, communication and waiting.

    They add up to the step; a single rank has no communication and no waiting.

    Args:
        step: What ``stage_times.describe`` returned.
        num_ranks: Number of ranks.
    """
    fine = parts(step, num_ranks)
    computing = {"compute": sum(fine[stage] for stage in COMPUTE)}
    rest = {part: seconds for part, seconds in fine.items() if part not in ("data", *COMPUTE)}
    return {"data": fine["data"], **computing, **rest}


def late_rank(named: Mapping[str, Any]) -> str:
    """Return the sentence about a rank that is proven to be late.

    Args:
        named: The entry ``named`` of what ``stage_times.describe`` returned.
    """
    return (
        f"rank {named['rank']} on {named['host']} takes {milliseconds(named['seconds'])} longer"
        f" a step than the others: {STAGE_WORDS[named['stage']]}"
    )
