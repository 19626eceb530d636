"""Choose the network interface of each node, and judge the user's choice. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding
from paceline.launch.preflight.facts import Facts
from paceline.machine.interfaces import Interface
from paceline.machine.nccl_lists import taken_interfaces

# node -> its address -> whether it answered, for each node that tried it
Reached = Mapping[int, Mapping[str, Sequence[bool]]]


@dataclass(frozen=True)
class Way:
    """The interface that a node uses.

    Attributes:
        name: Name of the interface; empty if no interface works.
        address: The address on it that other nodes reached.
        reason: Why this interface was chosen.
        choice: Whether there was another interface to choose.
        mbit: Its rate in Mbit/s; 0 if unknown.
    """

    name: str = ""
    address: str = ""
    reason: str = ""
    choice: bool = False
    mbit: int = 0


def candidates(node: Facts) -> list[Interface]:
    """Return the interfaces that could lead to other hosts."""
    return [each for each in node.interfaces if not each.loopback]


def carries(node: Facts, interface: Interface, reached: Reached) -> str:
    """Return the address of an interface that all nodes that tried it reached; empty if none."""
    tries = reached.get(node.node, {})
    return next(
        (address for address in interface.addresses if tries.get(address) and all(tries[address])),
        "",
    )


def choose(node: Facts, reached: Reached) -> Way:
    """Choose the interface of a node.

    The user's own choice comes first. Then comes the interface with the node's address in this run,
    because it already leads to the head.
    """
    working = {
        each.name: address for each in candidates(node) if (address := carries(node, each, reached))
    }
    rates = {each.name: each.mbit for each in candidates(node)}
    several = len(candidates(node)) > 1
    wanted = [
        each.name
        for each in _matching_gloo(node.settings.get(env.GLOO_INTERFACE, ""), node.interfaces)
    ]
    home = [each.name for each in candidates(node) if node.address in each.addresses]
    for names, reason in (
        (wanted, f"{env.GLOO_INTERFACE} is set"),
        (home, f"it carries {node.address}"),
        (working, "the other nodes reach it"),
    ):
        for name in names:
            if name in working:
                return Way(name, working[name], reason, several and not wanted, rates[name])
    return Way()


def variables(node: Facts, way: Way, reached: Reached) -> dict[str, str]:
    """Return variables that keep a node's ranks off dead interfaces; the user's own always win."""
    values = {}
    if way.name and not node.settings.get(env.GLOO_INTERFACE):
        values[env.GLOO_INTERFACE] = way.name
    if node.gpus and not node.settings.get(env.NCCL_INTERFACE):
        working = [each.name for each in candidates(node) if carries(node, each, reached)]
        # NCCL uses all interfaces except loopback and docker's
        taken = [each for each in candidates(node) if not each.name.startswith("docker")]
        if working and any(
            _tried(node, each, reached) and each.name not in working for each in taken
        ):
            values[env.NCCL_INTERFACE] = "=" + ",".join(working)
    return values


def _tried(node: Facts, interface: Interface, reached: Reached) -> bool:
    return any(reached.get(node.node, {}).get(address) for address in interface.addresses)


def _matching_gloo(setting: str, interfaces: Sequence[Interface]) -> list[Interface]:
    wanted = setting.split(",")
    return [each for each in interfaces if each.name in wanted]


def judge(nodes: Sequence[Facts], reached: Reached) -> list[Finding]:
    """Return the findings about interfaces that the user has named, and nodes without a usable one.

    Args:
        nodes: The facts of all nodes.
        reached: What nodes tried of each other; empty on one machine, where no link is used.
    """
    absent = [found for node in nodes for found in _absent(node)]
    findings = [_missing(absent)] if absent else []
    if not absent:
        unrouted = [(node, name) for node in nodes for name in _unrouted(node, reached)]
        findings += [_not_routed(unrouted, reached)] if unrouted else []
    lost = [node for node in nodes if reached.get(node.node) and not choose(node, reached).name]
    if not findings and lost:
        findings.append(_nowhere(lost))
    return findings


def _absent(node: Facts) -> list[tuple[Facts, str]]:
    """Return the settings of a node that match none of its interfaces."""
    names = [each.name for each in node.interfaces]
    gloo, nccl = (
        node.settings.get(env.GLOO_INTERFACE, ""),
        node.settings.get(env.NCCL_INTERFACE, ""),
    )
    missing = [env.GLOO_INTERFACE] if gloo and not set(gloo.split(",")) <= set(names) else []
    missing += [env.NCCL_INTERFACE] if nccl and not taken_interfaces(nccl, names) else []
    return [(node, name) for name in missing]


def _missing(absent: Sequence[tuple[Facts, str]]) -> Finding:
    node, name = absent[0]
    value = node.settings[name]
    exist = ", ".join(f"{each.name} ({each.addresses[0]})" for each in node.interfaces)
    more = [
        f"{other.words}: {variable}={other.settings[variable]}" for other, variable in absent[1:6]
    ]
    usable = candidates(node)
    # without GPUs, NCCL's variable is not read
    severity = "error" if any(n.gpus or v == env.GLOO_INTERFACE for n, v in absent) else "warning"
    return Finding(
        "interface-missing-on-node",
        f"{name}={value}: {node.words} has no such interface",
        where=", ".join(dict.fromkeys(other.words for other, _ in absent[:6])),
        evidence=(f"{node.words} has {exist}", *more),
        fix=f"unset {name} and let paceline choose"
        + (f", or {name}={usable[0].name} there" if usable else ""),
        severity=severity,
    )


def _unrouted(node: Facts, reached: Reached) -> list[str]:
    """Return the settings that name an interface without a route, if another one works."""
    if not any(carries(node, each, reached) for each in candidates(node)):
        return []
    found = []
    gloo = _matching_gloo(node.settings.get(env.GLOO_INTERFACE, ""), node.interfaces)
    if gloo and not all(carries(node, each, reached) for each in gloo):
        found.append(env.GLOO_INTERFACE)
    nccl = node.settings.get(env.NCCL_INTERFACE, "")
    taken = (
        [each for each in node.interfaces if taken_interfaces(nccl, [each.name])] if nccl else []
    )
    if node.gpus and taken and not any(carries(node, each, reached) for each in taken):
        found.append(env.NCCL_INTERFACE)
    return found


def _not_routed(unrouted: Sequence[tuple[Facts, str]], reached: Reached) -> Finding:
    node, name = unrouted[0]
    works = [each for each in candidates(node) if carries(node, each, reached)]
    return Finding(
        "interface-not-routed",
        f"{name}={node.settings[name]}: the other nodes do not reach {node.words} over it",
        where=", ".join(dict.fromkeys(other.words for other, _ in unrouted[:6])),
        evidence=(
            (
                f"reached on {node.host}:"
                f" {', '.join(f'{e.name} ({carries(node, e, reached)})' for e in works)}"
            ),
        ),
        why="ranks would wait there for connections that never come",
        fix=f"unset {name} and let paceline choose, or {name}={works[0].name}",
    )


def _nowhere(lost: Sequence[Facts]) -> Finding:
    """Return the finding that only the store is reachable, as behind address translation."""
    loop = [
        node for node in lost if node.named_loopback and not node.settings.get(env.GLOO_INTERFACE)
    ]
    node = (loop or lost)[0]
    tried = (
        ", ".join(f"{each.name} ({each.addresses[0]})" for each in candidates(node))
        or "no interface but loopback"
    )
    return Finding(
        "gloo-loopback" if loop else "interface-not-routed",
        f"the other nodes reach {node.words} over none of its interfaces"
        + (", and its own name means a loopback address" if loop else ""),
        where=", ".join(each.words for each in lost[:4]),
        evidence=(f"tried: {tried}",),
        why=(
            "ranks listen on ports that the kernel chooses: a firewall or translated addresses may"
            " keep others out"
        ),
        fix=(
            "let all ports pass between the nodes, or name the interface on every node: export"
            " GLOO_SOCKET_IFNAME=NAME"
        ),
        severity="warning",
    )
