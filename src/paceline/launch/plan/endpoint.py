"""Choose the rendezvous endpoint of a job: an address of this host and a free port."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from paceline.errors import SetupError
from paceline.machine import host, interfaces, nodeaddr
from paceline.machine.deadline import within
from paceline.text.quoting import bracketed

# Below Linux's ephemeral ports (32768 and up), which the kernel gives to outgoing connections.
_PORTS = range(15000, 32000)
_TRIES = 64
_PATIENCE_S = 5.0


def find(node_name: str) -> str:
    """Return ``HOST:PORT`` at which other nodes reach this one, with a numeric address.

    ``node_name`` is this node's in Slurm, empty if unknown. Raises SetupError if no port is free.
    """
    name = node_name or socket.gethostname()
    mine = [address for _, address in interfaces.addresses()]
    named = _resolve(name)
    in_slurm = "" if choose(named, mine) else nodeaddr.address_in_slurm(name)
    address = choose(named, mine) or _numeric(in_slurm) or choose(mine, mine) or "127.0.0.1"
    return f"{bracketed(address)}:{_free_port(address)}"


def choose(candidates: Sequence[str], mine: Sequence[str]) -> str:
    """Return the first address of this host that is not a loopback address; empty without one."""
    own = (address for address in candidates if address in mine)
    return next((address for address in own if not interfaces.is_loopback(address)), "")


def _numeric(name: str) -> str:
    """Resolve a name of Slurm's. If it is a loopback address, all nodes are this machine."""
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
    raise SetupError.of(
        "port-in-use",
        f"none of {_TRIES} ports between {_PORTS.start} and {_PORTS.stop} can be listened on",
        where=socket.gethostname(),
        fix="ss -ltnp shows which processes hold them",
    )
