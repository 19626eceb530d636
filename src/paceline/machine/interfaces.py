"""Read the network interfaces of this machine: addresses, rates, hardware."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.machine import files

_NET = Path("/sys/class/net")
_MOST_MBIT = 4_000_000  # an unknown rate can be -1, or -1 as an unsigned number


@dataclass(frozen=True)
class Interface:
    """A network interface that is up and has an address."""

    name: str  # name, such as ``eth0``
    addresses: tuple[str, ...] = ()  # numeric addresses, IPv4 first
    mbit: int = 0  # rate in Mbit/s; 0 if unknown
    loopback: bool = False  # whether it leads only to this machine
    virtual: bool = False  # whether it has no hardware: a bridge, a tunnel, a container's interface
    driver: str = ""  # the kernel's driver of its hardware


def gather(net: Path = _NET) -> tuple[Interface, ...]:
    """Return the interfaces that are up and have an address, without link-local addresses."""
    import psutil

    stats = psutil.net_if_stats()
    interfaces = []
    for name, entries in psutil.net_if_addrs().items():
        numeric = [entry for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        plain = [entry.address.split("%")[0] for entry in numeric]
        routed = [address for address in plain if not address.startswith("fe80:")]
        if routed and name in stats and stats[name].isup:
            interfaces.append(describe(name, routed, stats[name].speed, net=net))
    return tuple(interfaces)


def describe(name: str, addresses: Sequence[str], speed: int, *, net: Path = _NET) -> Interface:
    """Return an interface with the kernel's description; the speed is in Mbit/s."""
    loopback = all(map(is_loopback, addresses))
    outside = not net.exists() or _leads_outside(net, name)
    return Interface(
        name,
        tuple(sorted(addresses, key=lambda address: (":" in address, address))),
        mbit=speed if outside and 0 < speed < _MOST_MBIT else 0,
        loopback=loopback,
        virtual=not loopback and not outside,
        driver=files.link_name(net / name / "device" / "driver"),
    )


def _leads_outside(net: Path, name: str, depth: int = 3) -> bool:
    """Return whether an interface has hardware, directly or below a bond or a bridge."""
    if (net / name / "device").exists():
        return True
    entries = [entry for entry in files.names(net / name) if entry.startswith("lower_")]
    below = [entry.removeprefix("lower_") for entry in entries]
    return depth > 0 and any(_leads_outside(net, lower, depth - 1) for lower in below)


def addresses() -> tuple[tuple[str, str], ...]:
    """Return ``(interface, address)`` of the interfaces that are up, IPv4 before IPv6."""
    pairs = [(interface.name, address) for interface in gather() for address in interface.addresses]
    return tuple(sorted(pairs, key=lambda pair: (":" in pair[1], *pair)))


def is_loopback(address: str) -> bool:
    """Return whether an address, or ``localhost``, leads only to this machine."""
    return address.startswith("127.") or address in ("::1", "localhost")
