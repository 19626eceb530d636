"""Choose the network interface of each node, and check the user's choice. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.errors import Finding
from paceline.launch.preflight.facts import NodeFacts
from paceline.machine.interfaces import Interface
from paceline.machine.nccl_lists import taken_interfaces

# node -> its address -> whether it answered, for each node that tried it
Reached = Mapping[int, Mapping[str, Sequence[bool]]]


@dataclass(frozen=True)
class InterfaceChoice:
    """The interface that a node uses."""

    name: str = ""  # name of the interface; empty if no interface works
    address: str = ""  # the address on it that other nodes reached
    reason: str = ""  # why this interface was chosen
    has_alternative: bool = False  # whether paceline has chosen it, among several
    mbit: int = 0  # its rate in Mbit/s; 0 if unknown


def candidates(node: NodeFacts) -> list[Interface]:
    """Return the interfaces that could lead to other hosts."""
    return [interface for interface in node.interfaces if not interface.loopback]


def reached_address(node: NodeFacts, interface: Interface, reached: Reached) -> str:
    """Return the address of an interface that all nodes that tried it reached; empty if none."""
    tries = reached.get(node.node, {})
    for address in interface.addresses:
        if tries.get(address) and all(tries[address]):
            return address
    return ""


def _working(node: NodeFacts, reached: Reached) -> dict[str, Interface]:
    """Return the interfaces over which the other nodes reach a node, by name."""
    return {
        interface.name: interface
        for interface in candidates(node)
        if reached_address(node, interface, reached)
    }


def choose(node: NodeFacts, reached: Reached) -> InterfaceChoice:
    """Choose the interface of a node.

    The user's own choice comes first. Then comes the interface with the node's address in this run,
    because it already leads to the head.
    """
    working = _working(node, reached)
    set_by_user = [interface.name for interface in _set_for_gloo(node)]
    home = [interface.name for interface in candidates(node) if node.address in interface.addresses]
    has_alternative = len(candidates(node)) > 1 and not set_by_user
    for names, reason in (
        (set_by_user, f"{env.GLOO_INTERFACE} is set"),
        (home, f"it carries {node.address}"),
        (list(working), "the other nodes reach it"),
    ):
        interface = next((working[name] for name in names if name in working), None)
        if interface is not None:
            address = reached_address(node, interface, reached)
            return InterfaceChoice(interface.name, address, reason, has_alternative, interface.mbit)
    return InterfaceChoice()


def variables(node: NodeFacts, choice: InterfaceChoice, reached: Reached) -> dict[str, str]:
    """Return variables that keep a node's ranks off dead interfaces; the user's own always win."""
    values = {}
    if choice.name and not node.settings.get(env.GLOO_INTERFACE):
        values[env.GLOO_INTERFACE] = choice.name
    if node.gpus and not node.settings.get(env.NCCL_INTERFACE):
        working = _working(node, reached)
        if working and _may_use_dead_interface(node, reached):
            values[env.NCCL_INTERFACE] = "=" + ",".join(working)
    return values


def _may_use_dead_interface(node: NodeFacts, reached: Reached) -> bool:
    """Return whether NCCL would use an interface that other nodes tried and did not reach."""
    working = _working(node, reached)
    tries = reached.get(node.node, {})
    return any(
        interface.name not in working
        and not interface.name.startswith("docker")  # NCCL does not use docker's
        and any(tries.get(address) for address in interface.addresses)
        for interface in candidates(node)
    )


def _set_for_gloo(node: NodeFacts) -> list[Interface]:
    """Return the interfaces of a node that the user has named for gloo."""
    names = node.settings.get(env.GLOO_INTERFACE, "").split(",")
    return [interface for interface in node.interfaces if interface.name in names]


def judge(nodes: Sequence[NodeFacts], reached: Reached) -> list[Finding]:
    """Return the findings about interfaces that the user has named, and nodes without a usable one.

    On one machine, where no link is used, ``reached`` is empty.
    """
    absent = [(node, name) for node in nodes for name in _absent(node)]
    if absent:
        return [_missing(absent)]
    unrouted = [(node, name) for node in nodes for name in _unrouted(node, reached)]
    if unrouted:
        return [_not_routed(unrouted, reached)]
    unreached = [
        node for node in nodes if reached.get(node.node) and not choose(node, reached).name
    ]
    return [_unreachable(unreached)] if unreached else []


def _absent(node: NodeFacts) -> list[str]:
    """Return the variables of a node that match none of its interfaces."""
    names = [interface.name for interface in node.interfaces]
    gloo = node.settings.get(env.GLOO_INTERFACE, "")
    nccl = node.settings.get(env.NCCL_INTERFACE, "")
    absent = []
    if gloo and not set(gloo.split(",")) <= set(names):
        absent.append(env.GLOO_INTERFACE)
    if nccl and not taken_interfaces(nccl, names):
        absent.append(env.NCCL_INTERFACE)
    return absent


def _missing(absent: Sequence[tuple[NodeFacts, str]]) -> Finding:
    node, name = absent[0]
    others = [
        f"{other.words}: {variable}={other.settings[variable]}" for other, variable in absent[1:6]
    ]
    usable = candidates(node)
    alternative = f", or {name}={usable[0].name} there" if usable else ""
    # without GPUs, NCCL's variable is not read
    is_read = any(other.gpus or variable == env.GLOO_INTERFACE for other, variable in absent)
    return Finding(
        "interface-missing-on-node",
        f"{name}={node.settings[name]}: {node.words} has no such interface",
        where=_where(absent),
        evidence=(f"{node.words} has {_listed(node.interfaces)}", *others),
        fix=f"unset {name} and let paceline choose{alternative}",
        severity="error" if is_read else "warning",
    )


def _where(settings: Sequence[tuple[NodeFacts, str]]) -> str:
    """Return the first nodes of some settings, each once."""
    return ", ".join(dict.fromkeys(node.words for node, _ in settings[:6]))


def _listed(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{interface.name} ({interface.addresses[0]})" for interface in interfaces)


def _unrouted(node: NodeFacts, reached: Reached) -> list[str]:
    """Return the variables that name an interface without a route, if another one works."""
    if not _working(node, reached):
        return []
    unrouted = []
    for_gloo = _set_for_gloo(node)
    if not all(reached_address(node, interface, reached) for interface in for_gloo):
        unrouted.append(env.GLOO_INTERFACE)
    for_nccl = _set_for_nccl(node)
    reaches = any(reached_address(node, interface, reached) for interface in for_nccl)
    if node.gpus and for_nccl and not reaches:
        unrouted.append(env.NCCL_INTERFACE)
    return unrouted


def _set_for_nccl(node: NodeFacts) -> list[Interface]:
    """Return the interfaces of a node that the user's setting for NCCL selects."""
    setting = node.settings.get(env.NCCL_INTERFACE, "")
    if not setting:
        return []
    return [
        interface for interface in node.interfaces if taken_interfaces(setting, [interface.name])
    ]


def _not_routed(unrouted: Sequence[tuple[NodeFacts, str]], reached: Reached) -> Finding:
    node, name = unrouted[0]
    working = _working(node, reached)
    addresses = [
        f"{interface.name} ({reached_address(node, interface, reached)})"
        for interface in working.values()
    ]
    return Finding(
        "interface-not-routed",
        f"{name}={node.settings[name]}: the other nodes do not reach {node.words} over it",
        where=_where(unrouted),
        evidence=(f"reached on {node.host}: {', '.join(addresses)}",),
        why="ranks would wait there for connections that never come",
        fix=f"unset {name} and let paceline choose, or {name}={next(iter(working))}",
    )


def _unreachable(nodes: Sequence[NodeFacts]) -> Finding:
    """Return the finding that only the store is reachable: a firewall, or translated addresses."""
    node = nodes[0]
    tried = _listed(candidates(node)) or "no interface but loopback"
    return Finding(
        "interface-not-routed",
        f"the other nodes reach {node.words} over none of its interfaces, on ports that the kernel"
        " chooses",
        where=", ".join(node.words for node in nodes[:4]),
        evidence=(f"tried: {tried}",),
        why=(
            "ranks listen on such ports: a firewall that lets only the store's port pass, or"
            " translated addresses, keep others out"
        ),
        fix=(
            "let all TCP ports pass between the nodes (iptables -S INPUT shows rules), or name the"
            " interface on every node: export GLOO_SOCKET_IFNAME=NAME"
        ),
        severity="warning",
    )
