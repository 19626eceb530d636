"""Check network interfaces: which do NCCL and gloo use, and are sockets fast enough? Pure."""

from __future__ import annotations

from collections.abc import Iterator

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
    names = [each.name for each in facts.interfaces]
    if not names:
        return
    nccl, gloo = (
        facts.settings.get(env.NCCL_INTERFACE, ""),
        facts.settings.get(env.GLOO_INTERFACE, ""),
    )
    usable = [each.name for each in facts.interfaces if not each.loopback and not each.virtual]
    for name, value, fits in (
        (env.NCCL_INTERFACE, nccl, bool(taken_interfaces(nccl, names))),
        (env.GLOO_INTERFACE, gloo, set(gloo.split(",")) <= set(names)),
    ):
        if value and not fits:
            yield Finding(
                "interface-missing-on-node",
                f"{name}={value}: {facts.host.name} has no such interface that is up",
                where=place(name, facts),
                evidence=(f"up: {few(names, 8)}",),
                why="the ranks here find no interface to talk over",
                fix=f"unset {name}" + (f", or {name}={usable[0]} here" if usable else ""),
                # without GPUs nothing reads NCCL's variable
                severity="error" if facts.gpus or name == env.GLOO_INTERFACE else "warning",
            )


def _taken(facts: Facts) -> list[Interface]:
    """Return the interfaces that NCCL selects by default: ib* if there are any, else all but these.

    Source: NCCL's src/misc/socket.cc.
    """
    outside = [each for each in facts.interfaces if not each.loopback]
    infiniband = [each for each in outside if each.name.startswith("ib")]
    return infiniband or [each for each in outside if not each.name.startswith(_LEFT_OUT)]


def _ambiguous(facts: Facts) -> Iterator[Finding]:
    wanted = facts.settings.get(env.NCCL_INTERFACE, "")
    taken = _taken(facts)
    if wanted:
        taken = [
            interface
            for interface in facts.interfaces
            if taken_interfaces(wanted, [interface.name])
        ]
    doubtful = [each for each in taken if each.virtual]
    real = [each for each in facts.interfaces if not each.virtual and not each.loopback]
    # Of the interfaces that the user has named, doubt only those that lead nowhere at all.
    if not doubtful or not real or (wanted and len(doubtful) < len(taken)):
        return
    best = max(real, key=lambda each: each.mbit)
    yield Finding(
        "interface-ambiguous",
        (f"{env.NCCL_INTERFACE}={wanted}: " if wanted else "")
        + f"NCCL would use {few([each.name for each in taken])}"
        + (
            f", of which {few([each.name for each in doubtful])}"
            if len(doubtful) < len(taken)
            else ", which"
        )
        + " likely leads to no other node",
        where=place(env.NCCL_INTERFACE, facts) if wanted else facts.host.name,
        evidence=tuple(
            f"{each.name} {each.addresses[0] if each.addresses else ''}"
            f" ({'virtual' if each.virtual else 'hardware'})"
            for each in taken[:8]
        ),
        why="on several nodes NCCL may wait for connections over it that never come",
        fix=(
            f"on several nodes: export NCCL_SOCKET_IFNAME={best.name} (paceline run finds out by"
            " itself)"
        ),
        severity="hint",
    )


def _threads(facts: Facts) -> Iterator[Finding]:
    if (
        active(facts)
        or facts.settings.get(_THREADS)
        or facts.settings.get(_SOCKETS)
        or facts.settings.get("NCCL_NET")
    ):
        return
    wanted = facts.settings.get(env.NCCL_INTERFACE, "")
    used = [each for each in _taken(facts) if taken_interfaces(wanted, [each.name])]
    fast = [each for each in used if each.mbit >= _FAST_MBIT and each.driver not in _TUNED]
    if not fast or facts.rdma_libraries.plugins:
        return
    best = max(fast, key=lambda each: each.mbit)
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
