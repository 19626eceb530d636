"""Check network interfaces: which do NCCL and gloo use, and are sockets fast enough? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from paceline import env
from paceline.diagnose.doctor.checks.asked import place
from paceline.diagnose.doctor.checks.rdma import active
from paceline.diagnose.doctor.facts import Facts
from paceline.errors import Finding
from paceline.machine.interfaces import Interface
from paceline.machine.nccl_lists import taken_interfaces
from paceline.text.wording import few

_LEFT_OUT = ("docker", "virbr")
_FAST_MBIT = 25_000
_TUNED = ("ena", "gve")  # on AWS and Google Cloud, NCCL applies its own values
_THREADS, _SOCKETS = "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"


def judge_interfaces(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about network interfaces."""
    yield from _missing(facts)
    if facts.gpus:
        yield from _ambiguous(facts)
        yield from _threads(facts)


def _missing(facts: Facts) -> Iterator[Finding]:
    names = _names(facts.interfaces)
    if not names:
        return
    nccl = facts.settings.get(env.NCCL_INTERFACE, "")
    if nccl and not taken_interfaces(nccl, names):
        # Without GPUs, nothing reads NCCL's variable.
        severity = "error" if facts.gpus else "warning"
        yield _missing_interface(facts, env.NCCL_INTERFACE, severity=severity)
    gloo = facts.settings.get(env.GLOO_INTERFACE, "")
    # gloo fails at the first name that is missing, where NCCL takes what there is of a list.
    if gloo and not set(gloo.split(",")) <= set(names):
        yield _missing_interface(facts, env.GLOO_INTERFACE, severity="error")


def _missing_interface(facts: Facts, name: str, *, severity: str) -> Finding:
    hardware = _hardware(facts)
    return Finding(
        "interface-missing-on-node",
        f"{name}={facts.settings[name]}: {facts.host.name} has no such interface that is up",
        where=place(name, facts),
        evidence=(f"up: {few(_names(facts.interfaces), 8)}",),
        why="the ranks here find no interface to talk over",
        fix=f"unset {name}" + (f", or {name}={hardware[0].name} here" if hardware else ""),
        severity=severity,
    )


def _names(interfaces: Iterable[Interface]) -> list[str]:
    return [interface.name for interface in interfaces]


def _hardware(facts: Facts) -> list[Interface]:
    """Return the interfaces that are neither virtual nor the loopback interface."""
    return [
        interface
        for interface in facts.interfaces
        if not interface.virtual and not interface.loopback
    ]


def _selected_by_default(facts: Facts) -> list[Interface]:
    """Return the interfaces that NCCL selects by default.

    These are the interfaces ``ib*`` if there are any, else all except docker's and libvirt's.
    Source: NCCL's src/misc/socket.cc.
    """
    outside = [interface for interface in facts.interfaces if not interface.loopback]
    infiniband = [interface for interface in outside if interface.name.startswith("ib")]
    return infiniband or [
        interface for interface in outside if not interface.name.startswith(_LEFT_OUT)
    ]


def _matching(interfaces: Iterable[Interface], setting: str) -> list[Interface]:
    """Return the interfaces that match a value of ``NCCL_SOCKET_IFNAME``."""
    return [interface for interface in interfaces if taken_interfaces(setting, [interface.name])]


def _ambiguous(facts: Facts) -> Iterator[Finding]:
    """Yield a hint about interfaces that NCCL would use and that lead to no other node."""
    setting = facts.settings.get(env.NCCL_INTERFACE, "")
    selected = _matching(facts.interfaces, setting) if setting else _selected_by_default(facts)
    virtual = [interface for interface in selected if interface.virtual]
    if not virtual or not _hardware(facts):
        return
    if setting and len(virtual) < len(selected):
        return  # the setting names hardware too, and who wrote it may know the virtual ones
    yield _ambiguous_interfaces(facts, selected, virtual, setting)


def _ambiguous_interfaces(
    facts: Facts, selected: Sequence[Interface], virtual: Sequence[Interface], setting: str
) -> Finding:
    best = max(_hardware(facts), key=attrgetter("mbit"))
    variable = f"{env.NCCL_INTERFACE}={setting}: " if setting else ""
    which = f"of which {few(_names(virtual))}" if len(virtual) < len(selected) else "which"
    return Finding(
        "interface-ambiguous",
        f"{variable}NCCL would use {few(_names(selected))}, {which} likely leads to no other node",
        where=place(env.NCCL_INTERFACE, facts) if setting else facts.host.name,
        evidence=tuple(_quote(interface) for interface in selected[:8]),
        why="on several nodes NCCL may wait for connections over it that never come",
        fix=(
            f"on several nodes: export NCCL_SOCKET_IFNAME={best.name} (paceline run finds it"
            " automatically)"
        ),
        severity="hint",
    )


def _quote(interface: Interface) -> str:
    address = interface.addresses[0] if interface.addresses else ""
    return f"{interface.name} {address} ({'virtual' if interface.virtual else 'hardware'})"


def _threads(facts: Facts) -> Iterator[Finding]:
    """Yield a hint if a fast Ethernet interface is used with NCCL's default number of threads."""
    if active(facts) or facts.rdma_libraries.plugins:
        return  # NCCL does not use its own sockets there
    if any(facts.settings.get(name) for name in (_THREADS, _SOCKETS, "NCCL_NET")):
        return
    setting = facts.settings.get(env.NCCL_INTERFACE, "")
    fast = [
        interface
        for interface in _matching(_selected_by_default(facts), setting)
        if interface.mbit >= _FAST_MBIT and interface.driver not in _TUNED
    ]
    if not fast:
        return
    best = max(fast, key=attrgetter("mbit"))
    cpus = facts.limits.cpus
    yield Finding(
        "socket-threads-low",
        f"{best.name} carries {best.mbit / 1000:g} Gbit/s, and NCCL uses one thread and one socket"
        " per connection",
        where=best.name,
        evidence=("no RDMA port is up", f"{_THREADS} and {_SOCKETS} are not set"),
        why=(
            "on several nodes one thread does not fill such a link; the price is up to 4 busy"
            " threads per connection"
        )
        + (f" of {cpus} CPUs here" if cpus else ""),
        fix=f"on several nodes, and measured with and without: export {_THREADS}=4 {_SOCKETS}=4",
        severity="hint",
    )
