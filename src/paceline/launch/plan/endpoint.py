"""Where the nodes of a job can meet: an address of this host and a port that is free here."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from paceline.errors import Finding, SetupError
from paceline.machine import host, interfaces, nodeaddr
from paceline.machine.deadline import within
from paceline.text.quoting import bracketed

# Below Linux's ephemeral ports (32768 and up), which outgoing connections take without asking.
_PORTS = range(15000, 32000)
_TRIES = 64
_PATIENCE_S = 5.0


def find(node_name: str) -> str:
    """Return ``HOST:PORT``, the address numeric, for other nodes to reach this one by.

    Args:
        node_name: This node's name in Slurm; empty where that is not known.

    Raises:
        SetupError: No port could be listened on.
    """
    name = node_name or socket.gethostname()
    mine = [address for _, address in interfaces.addresses()]
    named = _resolve(name)
    slurms = "" if choose(named, mine) else nodeaddr.slurms(name)
    address = choose(named, mine) or _numeric(slurms) or choose(mine, mine) or "127.0.0.1"
    return f"{bracketed(address)}:{_free_port(address)}"


def choose(candidates: Sequence[str], mine: Sequence[str]) -> str:
    """Return the first address that is this host's and leads to it from elsewhere; empty if none does."""
    return next((each for each in candidates if each in mine and not interfaces.is_loopback(each)), "")


def _numeric(name: str) -> str:
    """Slurm's own word is taken even where it is a loopback address: all its nodes are this machine then."""
    return next(iter(_resolve(name)), "") if name else ""


def _resolve(name: str) -> tuple[str, ...]:
    nothing: tuple[str, ...] = ()
    return within(_PATIENCE_S, lambda: host.resolve(name), nothing)


def _free_port(address: str) -> int:
    for port in random.sample(_PORTS, _TRIES):
        try:
            host.listen(address, port).close()
        except OSError:
            continue
        return port
    raise SetupError(
        Finding(
            "port-in-use",
            f"none of {_TRIES} ports between {_PORTS.start} and {_PORTS.stop} can be listened on",
            where=socket.gethostname(),
            fix="ss -ltnp tells who holds them",
        )
    )
