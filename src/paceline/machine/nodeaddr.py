"""The address of a node that is known by its name in Slurm, which need not be a name that resolves.

Slurm reaches its nodes by their ``NodeAddr``, and ``scontrol`` tells it (slurm.conf(5)). Standard library only.
"""

from __future__ import annotations

import random
import re
import socket
import time

from paceline.machine import slurm_commands

_PATIENCE_S = 5.0
_TRIES = 3  # all tasks of a large step may ask at once


def of_node(name: str) -> str:
    """Return a name or numeric address by which a node can be reached: its name where that resolves."""
    try:
        socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return slurms(name) or name
    return name


def slurms(name: str) -> str:
    """Return the address that Slurm itself reaches a node by; empty where it does not answer."""
    for again in range(_TRIES):
        if again:
            time.sleep(random.uniform(0.2, 2.0))
        found = _ask(name)
        if found is not None:
            return found
    return ""


def _ask(name: str) -> str | None:
    """Return what Slurm says, empty if it knows nothing; None if it did not answer."""
    reply = slurm_commands.query("scontrol", "--oneliner", "show", "node", name, timeout_s=_PATIENCE_S)
    match = re.search(r"\bNodeAddr=(\S+)", reply.out)
    if match and reply.status == 0:
        return match[1]
    is_unknown = "not found" in reply.out + reply.err
    is_final = is_unknown or reply.status in (0, slurm_commands.MISSING, slurm_commands.NOT_STARTED)
    return "" if is_final else None
