"""Decide why nodes did not meet, from connection probes and the nodes' notes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import Finding, Notice
from paceline.launch.channel.connection_probe import ConnectionProbe
from paceline.launch.rendezvous.notes import Note
from paceline.machine.interfaces import is_loopback

_NAMES = {
    "unresolved": "hostname-unresolvable",
    "refused": "port-refused",
    "rejected": "port-filtered",
    "dropped": "port-filtered",
    "silent": "master-unreachable",
    "no-route": "master-unreachable",
}
_MEANINGS = {
    "unresolved": "the name does not resolve",
    "refused": "port refused: the host answers, nothing listens there",
    "rejected": "rejected by a firewall",
    "dropped": "dropped by a firewall: the port is silent, the host answers elsewhere",
    "silent": "the host does not answer",
    "no-route": "no route to the host",
}

# What to do where pods are awaited: nobody starts a launcher there by hand.
LOOK_AT_PODS = "kubectl get pods, and kubectl describe pod NAME, show what the others wait for"


def in_words(probe: ConnectionProbe) -> str:
    """Return the result of a connection probe in words, for the notice printed during the wait."""
    return _MEANINGS[probe.kind]


def judge(
    probe: ConnectionProbe,  # the last one
    mine: Note,
    others: Sequence[Note],  # of other nodes of the run; a node without a note is not listed
    *,
    waited_s: float,  # how long this node tried
) -> Finding:
    """Return why this node could not reach the head."""
    head = next((note for note in others if note.listens), None)
    finding = _not_reached(probe, mine, waited_s=waited_s)
    if probe.kind == "unresolved":
        return replace(finding, what=f"the head's name {mine.name} does not resolve on {mine.host}")
    if head is not None and _is_elsewhere(mine, head):
        return resolves_differently(head, mine)
    apart = head if head is not None and _are_apart(mine, head) else None
    if is_loopback(probe.address) and (apart is not None or not is_loopback(mine.name)):
        return to_itself(mine, apart)
    if head is not None and head.port != mine.port:
        line = (
            f"{head.words} is up and listens on port {head.port}, this node tries port {mine.port}"
        )
        fix = f"the same port on every node, such as {head.port}"
        return replace(finding, evidence=(line,), fix=fix)
    return finding


def _not_reached(probe: ConnectionProbe, mine: Note, *, waited_s: float) -> Finding:
    place = f"{mine.name}:{mine.port}"
    if probe.address and probe.address != mine.name:
        place += f" ({probe.address})"
    return Finding(
        _NAMES[probe.kind],
        f"the head at {place} was not reached from {mine.host} within {waited_s:.0f} s:"
        f" {in_words(probe)}",
        where=mine.host,
        evidence=(probe.detail,) if probe.detail else (),
        fix=_fix(probe, mine),
    )


def _fix(probe: ConnectionProbe, mine: Note) -> str:
    if probe.kind == "unresolved":
        return "use the head's numeric address, as `hostname -I` prints it there"
    if probe.kind in ("dropped", "rejected"):
        return _open_port(mine.port, place="on the head")
    if is_loopback(probe.address):
        return f"{mine.name} is this host itself: give the head's address, unless it starts here"
    if probe.kind == "refused":
        return (
            "start the head with the same port on the same host: there, ss -tln shows who listens"
            f" on {mine.port}"
        )
    return (
        "give the head's address in the network that both are in, as `hostname -I` prints it there"
    )


def _open_port(port: int, *, place: str) -> str:
    """Return the fix for a firewall."""
    return (
        f"open port {port} and the ephemeral ports between the nodes ({place}: iptables -S INPUT)"
    )


def notice(finding: Finding, probe: ConnectionProbe, *, place: str) -> Notice:
    """Return the notice of a node that waits for the head, from the finding of a failed wait."""
    details = finding.evidence
    if probe.kind == "refused":  # its detail repeats the words below
        details = tuple(line for line in details if line != probe.detail)
    if finding.name not in _NAMES.values():  # a wrong name or address explains more than the probe
        details = (finding.what, *details)
    return Notice(
        f"waiting for the head at {place}: {in_words(probe)}", details, f"fix: {finding.fix}"
    )


def resolves_differently(head: Note, node: Note) -> Finding:
    """Return the finding that the head's name has different addresses on a node and on the head."""
    return Finding(
        "address-resolves-differently",
        f"{node.name} resolves to {node.address} on {node.host} and to {head.address} on the head,"
        f" {head.host}",
        where=f"{node.host} and {head.host}",
        evidence=(f"from {node.host}: {node.trouble or 'not reached'}",),
        fix=(
            f"the numeric address on every node, such as {_outer_address(head)} (getent hosts"
            f" {node.name} shows what the name resolves to)"
        ),
    )


def to_itself(node: Note, head: Note | None = None) -> Finding:
    """Return the finding that on this node the head's name means the node itself."""
    means = (
        "means" if is_loopback(node.name) else f"resolves to {node.address} on {node.host}: that is"
    )
    known = f", such as {_outer_address(head)}" if head is not None else ""
    return Finding(
        "master-addr-wrong",
        f"{node.name} {means} {node.host} itself, not the head"
        + (f", which is on {head.host}" if head is not None else ""),
        where=node.host if is_loopback(node.name) else f"{node.host}, /etc/hosts",
        fix=f"use the head's numeric address{known}, as `hostname -I` prints it there",
    )


def _are_apart(one: Note, other: Note) -> bool:
    """Return whether two nodes are on different hosts, by their names or all their addresses."""
    addresses, others = set(one.addresses), set(other.addresses)
    return one.host != other.host or bool(addresses and others and addresses.isdisjoint(others))


def _misled(notes: Sequence[Note]) -> Finding | None:
    """Return the finding about a node that takes itself for a head on another host, else None."""
    for note in notes:
        heads = [head for head in notes if head.listens and _are_apart(note, head)]
        if heads and is_loopback(note.address):
            return to_itself(note, heads[0])
    return None


def explain_missing(
    finding: Finding, mine: Note, others: Sequence[Note], *, num_missing: int = 0
) -> Finding:
    """Return the head's finding with the evidence from notes of nodes that could not connect."""
    lines = evidence(mine, others)
    misled = _misled([mine, *others])
    if misled is not None:
        return replace(misled, evidence=(*lines, finding.what))
    fix = advice(mine, others, num_missing=num_missing) or finding.fix
    return replace(finding, evidence=(*finding.evidence, *lines), fix=fix)


def evidence(mine: Note, others: Sequence[Note]) -> list[str]:
    """Return one line for each of the first five notes of other nodes."""
    lines = [_evidence_of(note, mine) for note in others[:5]]
    if not lines and is_loopback(mine.address) and not is_loopback(mine.name):
        lines.append(
            f"{mine.name} resolves to {mine.address} here; a node where it does so too waits for"
            " itself"
        )
    return lines


def advice(mine: Note, others: Sequence[Note], *, num_missing: int) -> str:
    """Return the fix for nodes that are up but cannot connect; empty if some nodes are not up.

    ``mine`` is the note of the head, ``others`` those of the nodes that could not connect.
    """
    place = f"{_outer_address(mine)}:{mine.port}"
    misled = _misled([mine, *others])
    if misled is not None:
        return misled.fix
    if any(_is_elsewhere(note, mine) for note in others):
        return f"the same address and port on every node: {place}"
    mistaken = [note for note in others if note.port != mine.port]
    if mistaken:
        return f"the same port on every node: {mistaken[0].address or mine.name}:{mine.port}"
    if not others or len(others) < num_missing:
        return ""
    if any("firewall" in note.trouble for note in others):
        return _open_port(mine.port, place="here")
    return f"find out why {others[0].host} does not reach {place}; it prints what it sees"


def _evidence_of(note: Note, mine: Note) -> str:
    """Return what the note of another node shows the head."""
    if note.listens:
        return (
            f"{note.words} is up and hosts a store itself: {note.name} resolves to {note.address}"
            " there"
        )
    line = f"{note.words} is up and tries {note.address or note.name}:{note.port}"
    if note.address and _is_elsewhere(note, mine):
        return (
            f"{line}: {note.name} resolves to {note.address} there and to {mine.address} here, on"
            f" {mine.host}"
        )
    if note.port != mine.port:
        return f"{line}, the head listens on {mine.port}"
    return f"{line}: {note.trouble}"


def _is_elsewhere(node: Note, head: Note) -> bool:
    """Return whether a node tries to reach the head at an address that the head does not have."""
    return node.name == head.name and node.address not in (head.address, *head.addresses)


def _outer_address(head: Note) -> str:
    """Return the first address of the head that is not a loopback address, if it has one."""
    addresses = (head.address, *head.addresses)
    return next((address for address in addresses if not is_loopback(address)), head.address)
