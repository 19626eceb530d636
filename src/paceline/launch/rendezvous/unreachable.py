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
_MEANS = {
    "unresolved": "the name does not resolve",
    "refused": "port refused: the host answers, nothing listens there",
    "rejected": "rejected by a firewall",
    "dropped": "dropped by a firewall: the port is silent, the host answers elsewhere",
    "silent": "the host does not answer",
    "no-route": "no route to the host",
}


def in_words(knock: ConnectionProbe) -> str:
    """Return the result of a connection probe in words, for the notice printed during the wait."""
    return _MEANS[knock.kind]


def judge(
    knock: ConnectionProbe, mine: Note, others: Sequence[Note], *, waited_s: float
) -> Finding:
    """Return why this node could not reach the head.

    Args:
        knock: The last connection probe.
        mine: The note of this node.
        others: Notes of other nodes of the run. A node without a note is not listed.
        waited_s: How long this node tried, in seconds.
    """
    head = next((note for note in others if note.listens), None)
    place = f"{mine.name}:{mine.port}"
    if mine.name != knock.address and knock.address:
        place += f" ({knock.address})"
    finding = Finding(
        _NAMES[knock.kind],
        f"the head at {place} was not reached from {mine.host} within {waited_s:.0f} s:"
        f" {_MEANS[knock.kind]}",
        where=mine.host,
        evidence=(knock.detail,) if knock.detail else (),
        fix=_fix(knock, mine),
    )
    if knock.kind == "unresolved":
        return replace(finding, what=f"the head's name {mine.name} does not resolve on {mine.host}")
    if head is not None and _elsewhere(mine, head):
        return resolves_differently(head, mine)
    if is_loopback(knock.address) and not is_loopback(mine.name):
        return to_itself(mine)
    if head is not None and head.port != mine.port:
        line = (
            f"{head.words} is up and listens on port {head.port}, this node knocks at port"
            f" {mine.port}"
        )
        return replace(
            finding, evidence=(line,), fix=f"the same port on every node, such as {head.port}"
        )
    return finding


def _fix(knock: ConnectionProbe, mine: Note) -> str:
    if knock.kind == "unresolved":
        return "use the head's numeric address, as `hostname -I` prints it there"
    if knock.kind in ("dropped", "rejected"):
        return (
            f"open port {mine.port} and the ephemeral ports between the nodes (on the head:"
            " iptables -S INPUT)"
        )
    if knock.kind == "refused":
        return (
            "start the head with the same port on the same host: there, ss -tln shows who listens"
            f" on {mine.port}"
        )
    return (
        "give the head's address in the network that both are in, as `hostname -I` prints it there"
    )


def notice(finding: Finding, knock: ConnectionProbe, *, place: str) -> Notice:
    """Return the notice of a node that waits for the head, from the finding of a failed wait."""
    details = tuple(
        line for line in finding.evidence if knock.kind != "refused" or line != knock.detail
    )
    if finding.name not in _NAMES.values():  # a wrong name or address explains more than the probe
        details = (finding.what, *details)
    return Notice(
        f"waiting for the head at {place}: {_MEANS[knock.kind]}", details, f"fix: {finding.fix}"
    )


def resolves_differently(head: Note, node: Note) -> Finding:
    """Return the finding that the head's name has different addresses on a node and on the head."""
    return Finding(
        "address-resolves-differently",
        f"{node.name} means {node.address} on {node.host} and {head.address} on the head,"
        f" {head.host}",
        where=f"{node.host} and {head.host}",
        evidence=(f"from {node.host}: {node.trouble or 'not reached'}",),
        fix=(
            f"the numeric address on every node, such as {_best(head)} (getent hosts {node.name}"
            " tells more)"
        ),
    )


def to_itself(node: Note) -> Finding:
    """Return the finding that on this node the head's name resolves to the node itself."""
    return Finding(
        "master-addr-wrong",
        f"{node.name} means {node.address} on {node.host}: that is {node.host} itself, not the"
        " head",
        where=f"{node.host}, /etc/hosts",
        fix="use the head's numeric address, as `hostname -I` prints it there",
    )


def explain_missing(
    finding: Finding, mine: Note, others: Sequence[Note], *, num_missing: int = 0
) -> Finding:
    """Return the head's finding with the evidence from notes of nodes that could not connect.

    Args:
        finding: The finding that nodes are missing.
        mine: The note of the head.
        others: Notes of the nodes that could not connect.
        num_missing: How many nodes are missing.
    """
    lines = hearsay(mine, others)
    alone = [
        note
        for note in others
        if note.listens and is_loopback(note.address) and not is_loopback(note.name)
    ]
    if (
        not is_loopback(mine.name)
        and is_loopback(mine.address)
        and any(note.listens for note in others)
    ):
        alone = [mine]
    if alone:
        return replace(to_itself(alone[0]), evidence=(*lines, finding.what))
    told = replace(finding, evidence=(*finding.evidence, *lines))
    return replace(told, fix=advice(mine, others, num_missing=num_missing) or finding.fix)


def hearsay(mine: Note, others: Sequence[Note]) -> list[str]:
    """Return one line for each of the first five notes, as evidence."""
    lines = [_hearsay(note, mine) for note in others][:5]
    if is_loopback(mine.address) and not is_loopback(mine.name) and not lines:
        lines.append(
            f"{mine.name} means {mine.address} here; a node on which it does too waits for itself"
        )
    return lines


def advice(mine: Note, others: Sequence[Note], *, num_missing: int) -> str:
    """Return the fix for nodes that are up but cannot connect; empty if some nodes are not up.

    Args:
        mine: The note of the head.
        others: Notes of the nodes that could not connect.
        num_missing: How many nodes are missing.
    """
    if any(note.port != mine.port or _elsewhere(note, mine) for note in others):
        return f"the same address and port on every node: {_best(mine)}:{mine.port}"
    if not others or len(others) < num_missing:
        return ""
    walled = [note for note in others if "firewall" in note.trouble]
    if walled:
        return (
            f"open port {mine.port} and the ephemeral ports between the nodes (here: iptables -S"
            " INPUT)"
        )
    return (
        f"find out why {others[0].host} does not reach {_best(mine)}:{mine.port}; it prints what it"
        " sees"
    )


def _hearsay(note: Note, mine: Note) -> str:
    if note.listens:
        return (
            f"{note.words} is up and waits at a store of its own: {note.name} means {note.address}"
            " there"
        )
    line = f"{note.words} is up and knocks at {note.address or note.name}:{note.port}"
    if note.address and _elsewhere(note, mine):
        return (
            f"{line}: {note.name} means {note.address} there and {mine.address} here, on"
            f" {mine.host}"
        )
    return (
        f"{line}, the head listens on {mine.port}"
        if note.port != mine.port
        else f"{line}: {note.trouble}"
    )


def _elsewhere(node: Note, head: Note) -> bool:
    """Return whether a node tries to reach the head at an address that the head does not have."""
    return node.name == head.name and node.address not in (head.address, *head.addresses)


def _best(head: Note) -> str:
    own = [address for address in (head.address, *head.addresses) if not is_loopback(address)]
    return next(iter(own), head.address)
