"""Find out the world of this process: its environment, and what is known on this machine only."""

from __future__ import annotations

import os
import socket

from paceline import env
from paceline.errors import Finding, UsageError
from paceline.machine import host, interfaces
from paceline.world import World, from_environ

# MPICH's and Intel MPI's part on each node, the parent of all its tasks there.
_PROXIES = frozenset(("hydra_pmi_proxy", "pmi_proxy", "mpiexec.hydra", "mpispawn"))


def read() -> World:
    """Return the world of this process.

    Raises UsageError if the environment describes none, or rank 0 is not on the host where all
    ranks would look for it.
    """
    world = from_environ(env.snapshot(), in_terminal=env.in_terminal(), starter_pid=mpi_proxy_pid)
    if world.rank == 0 and world.head_source:
        require_head_here(world.master_addr, world.head_source)
    return world


def require_head_here(address: str, source: str) -> None:
    """Check that the head is this machine, in the task that hosts the store.

    ``source`` is where its name or address comes from, as a phrase. Raises UsageError if it is not.
    """
    if not _is_here(address):
        raise UsageError(_head_elsewhere(address, source))


def mpi_proxy_pid() -> int:
    """Return the process id of mpiexec's part on this node; 0 if no parent of this process is."""
    import psutil

    try:
        parents = psutil.Process(os.getpid()).parents()
        return next((parent.pid for parent in parents if parent.name() in _PROXIES), 0)
    except psutil.Error:
        return 0


def _is_here(name: str) -> bool:
    """Return whether a name or address means this machine; True if the name does not resolve.

    What does not resolve here may resolve for the other ranks, and is reported where it is used.
    """
    try:
        resolved = host.resolve(name)
    except OSError:
        return True
    own = [address for _, address in interfaces.addresses()]
    return any(address in own or interfaces.is_loopback(address) for address in resolved)


def _head_elsewhere(address: str, source: str) -> Finding:
    """Return the finding that the first task is not on the host that is taken for the head."""
    name = socket.gethostname()
    return Finding(
        "master-addr-wrong",
        f"the first task is on {name}, and the others would look for it at {address}, {source}",
        where=name,
        why="mpirun does not say to its tasks where the first one is",
        fix=f"give all tasks MASTER_ADDR={name}: mpirun -x, mpiexec -genv or --env",
    )
