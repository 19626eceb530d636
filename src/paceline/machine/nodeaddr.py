"""Find the address of a node from its Slurm name, which may not resolve.

Slurm reaches its nodes by their ``NodeAddr``, which ``scontrol`` shows (slurm.conf(5)). Standard
library only.
"""

from __future__ import annotations

import random
import re
import socket
import time

from paceline.machine import slurm_commands

_TIMEOUT_S = 5.0
_TRIES = 3  # all tasks of a large step may ask at the same time


def of_node(name: str) -> str:
    """Return a name or numeric address that reaches a node: its Slurm name if that resolves."""
    try:
        socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return address_in_slurm(name) or name
    return name


def address_in_slurm(name: str) -> str:
    """Return the address that Slurm uses for a node; empty if Slurm does not answer."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(random.uniform(0.2, 2.0))
        address = _ask(name)
        if address is not None:
            return address
    return ""


def _ask(name: str) -> str | None:
    """Query Slurm once; return an empty text if the node is unknown, None without an answer."""
    reply = slurm_commands.query(
        "scontrol", "--oneliner", "show", "node", name, timeout_s=_TIMEOUT_S
    )
    match = re.search(r"\bNodeAddr=(\S+)", reply.out)
    if match and reply.status == 0:
        return match[1]
    is_unknown = "not found" in reply.out + reply.err
    is_final = is_unknown or reply.status in (0, slurm_commands.MISSING, slurm_commands.NOT_STARTED)
    return "" if is_final else None
