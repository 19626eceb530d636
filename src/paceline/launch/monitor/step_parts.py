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
_ANY_RANK_WORDS = {
    "optimizer": "the optimizer step",
    "data": "waiting for the DataLoader",
    "forward": "the forward",
    "backward": "the backward",
    "exchange": "the exchange of gradients",
}
# A mean that is longer than the usual step by less is not worth a figure.
LONGER = 1.05


def parts(
    step: Mapping[str, Any],  # what ``stage_times.describe`` returned
    num_ranks: int,  # number of ranks
) -> dict[str, float]:
    """Return the seconds of each part, in the order of ``PARTS``; they add up to the step.

    A single rank exchanges no gradients: what its backward does last is computation.
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


def coarse(
    step: Mapping[str, Any],  # what ``stage_times.describe`` returned
    num_ranks: int,  # number of ranks
) -> dict[str, float]:
    """Return the seconds of data, compute, other code, communication and waiting.

    They add up to the step; a single rank has no communication and no waiting.
    """
    fine = parts(step, num_ranks)
    computing = {"compute": sum(fine[stage] for stage in COMPUTE)}
    rest = {part: seconds for part, seconds in fine.items() if part not in ("data", *COMPUTE)}
    return {"data": fine["data"], **computing, **rest}


def remarks(
    step: Mapping[str, Any],  # what ``rare_delays.describe`` returned
) -> list[str]:
    """Return sentences: the rank that is late, what the usual step leaves out, what is not seen."""
    sentences = [late_rank(step)] if step["named"] else []
    sentences += [rare_delay(delay) for delay in step.get("rare", ())]
    if not has_loader(step):
        sentences.append(
            "no DataLoader was seen: loading batches, and what follows a step, counts as forward"
        )
    return sentences


def has_loader(step: Mapping[str, Any]) -> bool:
    """Return whether batches came from a DataLoader; else forward begins at the last step's end."""
    return bool(step["stages"]["data"] or step["stages"]["other"])


def late_rank(
    step: Mapping[str, Any],  # what ``stage_times.describe`` returned, with a rank under ``named``
) -> str:
    """Return the sentence about the rank that is proven to be late."""
    named = step["named"]
    words = STAGE_WORDS[named["stage"]]
    if named["stage"] == "forward" and not has_loader(step):
        words = "loading its batches or its forward"
    return (
        f"rank {named['rank']} on {named['host']} takes {milliseconds(named['seconds'])} longer"
        f" a step than the others: {words}"
    )


def usual_and_mean(
    step: Mapping[str, Any],  # what ``stage_times.describe`` returned, with ``mean`` in seconds
) -> str:
    """Return ``34.1 ms``, or ``34.1 ms (mean 49.5 ms)`` if the mean of all steps is longer."""
    usual = milliseconds(step["seconds"])
    mean_s = step.get("mean", 0.0)
    return f"{usual} (mean {milliseconds(mean_s)})" if mean_s > LONGER * step["seconds"] else usual


def rare_delay(
    delay: Mapping[str, Any],  # one of what ``rare_delays.describe`` returned
) -> str:
    """Return the sentence about steps that take longer than the usual one."""
    when = f"in {delay['times']} of {delay['steps']} timed steps"
    if delay["every"]:
        when = f"every {delay['every']} steps"
    who, words = "one rank or another", {**STAGE_WORDS, **_ANY_RANK_WORDS}
    if delay["rank"] is not None:
        who, words = f"rank {delay['rank']} on {delay['host']}", STAGE_WORDS
    elif delay["together"]:
        who = "every rank"
    return (
        f"{when} {who} takes {milliseconds(delay['seconds'])} longer: {words[delay['stage']]};"
        f" {delay['share']:.0%} of the time"
    )
