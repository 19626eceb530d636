"""Explain why a job is pending: Slurm's reasons in words, and what would change them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HELD_BACK = "a job that was queued again is held back, usually for two minutes"
# Reasons that end without any action; Priority and Resources need no explanation.
_PASSING: Mapping[str, str] = {
    "Dependency": "it waits for another job",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved: sinfo -R",
    "Reservation": "its reservation has not begun",
    "Licenses": "it waits for a licence",
    "Cleaning": "its nodes are being cleaned up after the start before",
}
# These last until somebody changes something. An entry is a pattern of the whole reason.
_LASTING: Mapping[str, str] = {
    "PartitionNodeLimit": "it requests more nodes than its partition gives to a job: fewer --nodes",
    "PartitionTimeLimit": "it requests more time than its partition gives: a shorter --time",
    "PartitionDown|PartitionInactive": "its partition is closed: sinfo shows which are up",
    "AccountNotAllowed|InvalidAccount": "its account may not use this partition: another --account",
    "InvalidQOS": "its quality of service is not valid here",
    "QOSNotAllowed": "its quality of service may not use this partition",
    "BadConstraints": (
        "no nodes of this cluster have all that it requests: scancel it, and request less"
    ),
    "DependencyNeverSatisfied": "the job that it waits for has failed: scancel it",
    "JobHeldUser": "you hold it: scontrol release",
    "JobHeldAdmin": "an administrator holds it, or it failed to start too often: ask the site",
    r"launch_failed_requeued_held|JobHoldMaxRequeue": (
        "it failed to start and is held: scontrol release"
    ),
    "NodeDown": "a node that it needs is down",
    r"(Assoc|QOS|MaxCpuPer|MaxMem|MaxGRES)\w*(GRES|GPU)\w*": (
        "it and your other jobs exceed the limit of GPUs"
    ),
    r"(Assoc|QOS)\w*Cpu\w*": "it and your other jobs exceed the limit of CPUs",
    r"(Assoc|QOS)\w*Mem\w*": "it and your other jobs exceed the limit of memory",
    r"(Assoc|QOS)\w*Node\w*": "it and your other jobs exceed the limit of nodes",
    r"(Assoc|QOS)\w*(Wall|Minutes|BillingMinutes|RunMinutes)\w*": (
        "the time that the account or QOS gives is used up, or --time exceeds it"
    ),
    r"(Assoc|QOS)\w*Job\w*": "as many of your jobs run as may at a time",
}


def explain(reason: str, *, again: bool = False) -> str:
    """Explain a reason and what would change it; empty for reasons that need no explanation.

    Args:
        reason: Slurm's reason.
        again: Whether the job has run before, and was queued again.
    """
    name = re.split(r"[ ,(]", reason, maxsplit=1)[0]
    if name == "BeginTime":
        return _HELD_BACK if again else ""
    if name in _PASSING:
        return _PASSING[name]
    return next((words for pattern, words in _LASTING.items() if re.fullmatch(pattern, name)), "")
