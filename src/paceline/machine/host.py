"""Read the facts about this machine for the plan: CPUs, GPUs, addresses, owners of ports.

The module reads and decides nothing. It imports torch only to count devices that only torch can
count.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from paceline import env
from paceline.machine import gpus, interfaces, processes, torch_requirements, ulimits
from paceline.machine.cpus import usable_cpus


@dataclass(frozen=True)
class HostFacts:
    """The facts that a plan is based on."""

    hostname: str  # the machine's own name, never resolved
    platform: str  # ``sys.platform``
    usable_cpus: int  # CPUs that this process may use: affinity and cgroup quota
    cpu_reason: str  # source of that number
    num_gpus: int  # GPUs visible to ranks
    gpu_reason: str  # source of that number
    # ``(interface, numeric address)`` of the interfaces that are up, IPv4 first
    addresses: tuple[tuple[str, str], ...]
    granted_gpus: int = 0  # GPUs that a scheduler assigned to the run on this node; 0 if unknown
    python_flags: tuple[str, ...] = ()  # flags of the launcher's interpreter, such as ``-O``
    most_files: int | None = None  # that this user may have open in a process; None if unlimited


def gather(
    visible_devices: str | None,  # ``CUDA_VISIBLE_DEVICES``; None if unset
    *,
    granted_cpus: int | None = None,  # by a scheduler to this process; None without one
    granted_gpus: int = 0,  # by a scheduler; 0 if unknown
) -> HostFacts:
    """Read the facts about this machine."""
    cpus, cpu_reason = usable_cpus()
    if granted_cpus is not None and granted_cpus < cpus:
        cpus, cpu_reason = granted_cpus, env.CPUS_PER_TASK
    num_gpus, gpu_reason = gpus.count(visible_devices)
    return HostFacts(
        hostname=socket.gethostname(),
        platform=sys.platform,
        usable_cpus=cpus,
        cpu_reason=cpu_reason,
        num_gpus=num_gpus,
        gpu_reason=gpu_reason,
        addresses=interfaces.addresses(),
        granted_gpus=0 if visible_devices == "" else granted_gpus,
        python_flags=python_flags(sys.orig_argv),
        most_files=ulimits.hard("nofile"),
    )


def python_flags(command: Sequence[str]) -> tuple[str, ...]:
    """Return the flags of a Python command that affect a script, except -u, which all ranks have.

    ``command`` is ``sys.orig_argv``: the interpreter, its flags, then ``-m`` and a module, or a
    file.
    """
    flags: list[str] = []
    words = iter(command[1:])
    for word in words:
        if not re.match("-[a-zA-Z]", word):
            break
        if word[1] in "WX":
            flags.append(word if len(word) > 2 else f"{word} {next(words, '')}")
            continue
        letters = re.split("[mc]", word[1:])[0]
        flags += [f"-{letter}" for letter in letters if letter != "u"]
        if letters != word[1:]:
            break
    return tuple(flags)


def count_devices_by_torch(kind: str) -> int:
    """Return the number of accelerators, ``"xpu"`` or ``"auto"``, that only torch can count."""
    torch_requirements.require()
    import torch

    if kind == "xpu":
        return int(torch.xpu.device_count()) if torch.xpu.is_available() else 0
    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0


def is_numeric(name: str) -> bool:
    """Return whether a host is a numeric address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            return bool(socket.inet_pton(family, name))
    return False


def resolve(name: str) -> tuple[str, ...]:
    """Return the numeric addresses of a host name, IPv4 first.

    Raises OSError if the name does not resolve.
    """
    entries = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    ordered = sorted(entries, key=lambda entry: entry[0] == socket.AF_INET6)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in ordered))


def address_towards(target: str) -> str:
    """Return this machine's source address for packets to ``target``, without sending any.

    Raises OSError if the target cannot be routed to.
    """
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))  # connecting a datagram socket only looks up the route
        return str(probe.getsockname()[0])


def listen(address: str, port: int, *, only: bool = False) -> socket.socket:
    """Return a socket that listens on the port and stays open until the store takes it over.

    ``address`` is any numeric address of the desired family. The socket listens on all interfaces,
    because ranks of other nodes may arrive through any of them; with ``only`` all clients use
    ``address``, and it listens only there if that is an address of this host. 0 lets the kernel
    choose the port. Raises OSError if the port is in use (``errno.EADDRINUSE``) or not permitted.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    anywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"
    only = only or (port == 0 and address in ("127.0.0.1", "::1"))
    try:
        _bind(server, (address, anywhere) if only else (anywhere,), port)
        server.listen(4096)
    except OSError:
        server.close()
        raise
    return server


def _bind(server: socket.socket, addresses: Sequence[str], port: int) -> None:
    """Bind a socket to the first of some addresses that belongs to this host."""
    for address in addresses:
        try:
            server.bind((address, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or address == addresses[-1]:
                raise
        else:
            return


def holder_of(port: int) -> str:
    """Return the process on a port, as ``pid 4242 (python old_train.py)``; empty if not visible."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return ""
    listening = [entry for entry in connections if entry.status == psutil.CONN_LISTEN]
    on_port = [entry for entry in listening if entry.laddr and entry.laddr.port == port]
    pids = [entry.pid for entry in on_port if entry.pid]
    return processes.describe(pids[0]) if pids else ""
