"""Decide from the nodes that have arrived whether the run can begin, or why it cannot.

Pure. The node that hosts the store decides for all, so that every node of a run prints the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import Finding, Notice
from paceline.text.wording import few


@dataclass(frozen=True)
class Arrived:
    """One node, as it announced itself."""

    ticket: int  # order of arrival, starting at 1
    rank: int | None  # its node rank; None if torch's rendezvous assigns the ranks
    host: str  # its host name
    pid: int  # process id of its launcher
    nodes: tuple[int, int]  # minimum and maximum number of nodes that it was started for

    @property
    def words(self) -> str:
        """Host and process id, by which a person finds the launcher."""
        return f"{self.host} (launcher pid {self.pid})"

    @property
    def name(self) -> str:
        """Its node rank and host; without a node rank the host and process id."""
        return self.words if self.rank is None else f"node {self.rank} on {self.host}"


@dataclass(frozen=True)
class PresenceVerdict:
    """The result of the wait for nodes."""

    members: tuple[Arrived, ...] = ()  # the nodes that begin the run
    finding: Finding | None = None  # why the run cannot begin; None if it can


def judge(
    present: Sequence[Arrived], *, head: Arrived, sure: frozenset[int]
) -> PresenceVerdict | None:
    """Decide whether the nodes that have arrived can begin the run; None while some are awaited.

    ``present`` have a recent sign of life, the head included, in the order of their tickets.
    ``sure`` are the tickets of those that gave one after the newest node came. Only these are
    compared with each other: a node that was interrupted and started again does not take its rank
    twice.
    """
    for node in present:
        if node.nodes != head.nodes:
            return PresenceVerdict(finding=sizes_differ(head, node))
    least, most = head.nodes
    if head.rank is None:
        return PresenceVerdict(tuple(present[:most])) if len(present) >= least else None
    first: dict[int | None, Arrived] = {}
    for node in present:
        other = first.setdefault(node.rank, node)
        if other is not node and {other.ticket, node.ticket} <= sure:
            return PresenceVerdict(finding=same_rank_twice(other, node))
    is_complete = len(first) == most == len(present)
    return PresenceVerdict(tuple(sorted(first.values(), key=_order))) if is_complete else None


def _order(node: Arrived) -> int:
    return -1 if node.rank is None else node.rank


def judge_newcomer(me: Arrived, verdict: PresenceVerdict, *, head: Arrived) -> Finding | None:
    """Return why a node that comes after the roll call cannot join; None if torch may admit it."""
    if verdict.finding is not None:
        return too_late(me, verdict.finding)
    most = head.nodes[1]
    if me.rank is None:
        return None if me.nodes == head.nodes else sizes_differ(head, me)
    if me.nodes != head.nodes and me.rank < most:
        return sizes_differ(head, me)
    twins = [member for member in verdict.members if member.rank == me.rank]
    if twins and me.nodes == head.nodes:
        return same_rank_twice(twins[0], me)
    return too_many(me, [_place_of(member) for member in verdict.members], num_nodes=most)


def _place_of(member: Arrived) -> str:
    """Return a member of the run, and its node rank if it has one."""
    return member.words if member.rank is None else f"node {member.rank} is {member.words}"


def sizes_differ(head: Arrived, node: Arrived) -> Finding:
    """Return the finding that two nodes were started for different numbers of nodes."""
    return Finding(
        "world-size-mismatch",
        f"the head on {head.host} expects --nnodes {_nnodes(head.nodes)}, "
        f"{_numbered(node)} on {node.host} was started with --nnodes {_nnodes(node.nodes)}",
        where=f"{head.words} and {node.words}",
        fix=(
            f"--nnodes {_nnodes(head.nodes)} on every node, or --nnodes {_nnodes(node.nodes)} on"
            " every node"
        ),
    )


def same_rank_twice(one: Arrived, other: Arrived) -> Finding:
    """Return the finding that two nodes claim the same node rank."""
    return Finding(
        "duplicate-ranks",
        f"two nodes have node rank {one.rank}: {one.words} and {other.words}",
        where=f"{one.host} and {other.host}",
        fix=f"give each node its own --node-rank, from 0 to {one.nodes[1] - 1}",
    )


def too_many(me: Arrived, hosts: Sequence[str], *, num_nodes: int) -> Finding:
    """Return the finding that all places of the run are taken."""
    return Finding(
        "extra-node",
        f"the run has its {num_nodes} nodes already; {_numbered(me)} on {me.words} is one too many",
        where=me.host,
        evidence=(f"in the run: {few(hosts, 8)}",),
        fix=(
            f"--nnodes {num_nodes + 1} on every node to take it in, or give this run another port"
            " or --rdzv-id"
        ),
    )


def too_late(me: Arrived, over: Finding) -> Finding:
    """Return the finding that the run was given up before this node came."""
    return Finding(
        "late-node",
        f"{me.words} came when the roll call was over; the run had ended: {over.what}",
        where=me.host,
        fix=(
            "start all nodes again, or give slow ones more time on every node: --roll-call-timeout"
            " 1800"
        ),
    )


def missing(
    present: Sequence[Arrived],
    *,
    head: Arrived,
    waited_s: float,  # by the head
    hosts: Sequence[str],  # of each node rank; empty if unknown
    evidence: Sequence[str],  # about the nodes that did not come
) -> Finding:
    """Return the finding that nodes have not come in time."""
    least, most = head.nodes
    if head.rank is None:
        num_absent = least - len(present)
        what = f"{len(present)} of {least} nodes came within {waited_s:.0f} s, {num_absent} did not"
        where = f"a node that has not started, or does not reach {head.host}"
        options = "the same --rdzv-endpoint and --rdzv-id"
    else:
        absent = _absent(present, most)
        what = f"node {listed(absent)} of {most} did not come within {waited_s:.0f} s"
        absent_hosts = [f"node {rank} is {hosts[rank]}" for rank in absent[:10]] if hosts else []
        where = ", ".join(absent_hosts) or f"node {listed(absent)}"
        options = "its own --node-rank"
    return Finding(
        "node-missing",
        what,
        where=where,
        evidence=(f"here: {few([node.name for node in present], 8)}", *evidence),
        fix=(
            f"start paceline run there too, with {options}; to wait longer, on every node:"
            " --roll-call-timeout 1800"
        ),
    )


def notice(
    present: Sequence[Arrived],
    *,
    head: Arrived,
    hosts: Sequence[str],  # of each node rank; empty if unknown
    evidence: Sequence[str],  # about the nodes that did not come
    fix: str,  # for nodes that are up but cannot connect; empty if none is known
) -> Notice:
    """Return the notice about awaited and present nodes, which all nodes print."""
    absent = missing(present, head=head, waited_s=0, hosts=hosts, evidence=evidence)
    where = (absent.where,) if hosts and head.rank is not None else ()
    usual = absent.fix.partition(";")[0]
    return Notice(
        f"waiting for {awaited(present, head=head)}",
        (*where, *absent.evidence),
        f"fix: {fix or usual}",
    )


def awaited(present: Sequence[Arrived], *, head: Arrived) -> str:
    """Return which nodes the run waits for, in words."""
    least, most = head.nodes
    if head.rank is None:
        return f"nodes ({len(present)} of {'at least ' * (least < most)}{least} are here)"
    return f"node {listed(_absent(present, most))} of {most}"


def num_missing(present: Sequence[Arrived], *, head: Arrived) -> int:
    """Return how many nodes are missing."""
    least, most = head.nodes
    return least - len(present) if head.rank is None else len(_absent(present, most))


def _absent(present: Sequence[Arrived], num_nodes: int) -> list[int]:
    return sorted(set(range(num_nodes)) - {node.rank for node in present})


def listed(nodes: Sequence[int]) -> str:
    """Return node numbers as a list in words, shortened to the first ten."""
    return few([str(node) for node in nodes], 10)


def _numbered(node: Arrived) -> str:
    return "a node" if node.rank is None else f"node {node.rank}"


def _nnodes(nodes: tuple[int, int]) -> str:
    return str(nodes[0]) if nodes[0] == nodes[1] else f"{nodes[0]}:{nodes[1]}"
