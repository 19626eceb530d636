"""The address of a node that is known by its name in Slurm, which need not be a name that resolves.

Slurm reaches its nodes by their ``NodeAddr``, and ``scontrol`` tells it (slurm.conf(5)). Standard library only.
"""

from __future__ import annotations

import re
import socket
import subprocess

_PATIENCE_S = 5.0


def of_node(name: str) -> str:
    """Return a name or numeric address by which a node can be reached: its name where that resolves."""
    try:
        socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError:
        return slurms(name) or name
    return name


def slurms(name: str) -> str:
    """Return the address that Slurm itself reaches a node by; empty where it does not answer."""
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
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\bNodeAddr=(\S+)", said.stdout)
    return found[1] if found and said.returncode == 0 else ""
