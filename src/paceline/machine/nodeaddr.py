"""The address of a node that is known by its name in Slurm, which need not be a name that resolves.

Slurm reaches its nodes by their ``NodeAddr``, and ``scontrol`` tells it (slurm.conf(5)). Standard library only.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import time

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
    try:
        said = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", name],
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        return None
    found = re.search(r"\bNodeAddr=(\S+)", said.stdout)
    if found and said.returncode == 0:
        return found[1]
    return "" if "not found" in said.stdout + said.stderr or said.returncode == 0 else None
