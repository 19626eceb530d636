"""Call the roll: nodes announce themselves in the store, and its host decides who is there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from paceline.errors import Finding, Notice, RunError
from paceline.launch.channel.signed_store import SignedStore
from paceline.launch.rendezvous import presence, unreachable
from paceline.launch.rendezvous.node_wait import Waiting
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived, Verdict

# Raw keys, outside every prefix: nodes meet here before there is an attempt.
_ROLL = "paceline/roll"
_VERDICT = f"{_ROLL}/verdict"
_WHOLE = f"{_ROLL}/whole-verdict"
_AWAITED = f"{_ROLL}/awaited"
_PLACES = f"{_ROLL}/places"
# Nodes give signs of life many times within this time. A node without one was interrupted.
_GONE_S = 3.0
# How long the store outlives a verdict, for a node that comes at that moment. Nodes that are here
# read the verdict, which takes seconds on a busy machine.
_LINGER_S = 1.0
_READ_S = 10.0
# How long a node waits for a place in a complete run: one of its nodes may soon be replaced.
_PLACE_S = 8.0
_AHEAD = 4096  # limit of tickets that are issued between two reads
_HOSTS_S = 3.0
# How often the notes are read: their folder may be on a file server.
_NOTES_S = 5.0
# Nodes wait for the head's verdict, which may arrive shortly after their own limit.
_PATIENCE_S = 10.0


@dataclass
class _Seen:
    """What the head knows about one node.

    Attributes:
        who: The node, as it announced itself.
        is_signed: Whether the announcement was signed.
        first: When the node came.
        beat: Its last sign of life.
        since: When that last sign of life came.
    """

    who: Arrived
    is_signed: bool
    first: float
    beat: bytes = b""
    since: float = 0.0


class Roll:
    """The roll call, as one node takes part in it.

    Args:
        store: The store of the run.
        me: This node; its ticket is not known yet.
        head: The node that hosts the store.
        hosts: Whether this node is the head.
        limit_s: How long to wait for nodes, in seconds.
        hosts_by_rank: Host of each node rank, if a scheduler provides it; else empty.
        notes: The notes of the nodes in the shared folder.
        inform: Prints a notice.
        needs_secret: Whether nodes that do not sign are excluded from the run.

    Attributes:
        members: The nodes that begin the run, on the node that hosts the store; empty elsewhere.
        is_signed: Whether all members sign.
    """

    def __init__(
        self,
        store: Any,
        me: Arrived,
        head: Arrived,
        *,
        hosts: bool,
        limit_s: float,
        hosts_by_rank: list[str],
        notes: Notes,
        inform: Callable[[Notice], None],
        needs_secret: bool = False,
    ) -> None:
        self._needs_secret = needs_secret
        self.is_signed = False
        self._store = SignedStore.of(store)
        self._me = me
        self._head = head
        self._hosts = hosts
        self._limit_s = limit_s
        self._hosts_by_rank = hosts_by_rank
        self._notes = notes
        self._waiting = Waiting(inform, limit_s=limit_s)
        self._read_notes_s = 0.0
        self._away: list[Note] = []
        self.members: tuple[Arrived, ...] = ()
        self._seen: dict[int, _Seen] = {}
        self._awaited: Notice | None = None
        self._tick_s = min(1.0, max(0.05, me.nodes[1] / 1000))

    def answer(self) -> None:
        """Announce this node and return when the run can begin.

        Raises:
            RunError: The run cannot begin; all nodes that are up get the same finding.
        """
        if self._store.find(_VERDICT) is not None:
            self._come_late()
            return
        self._announce()
        finding, tickets = self._await_verdict()
        if finding is not None:
            self._leave(finding)
        if self._me.ticket not in tickets:
            self._come_late()
            return
        if self._hosts:  # else a thousand nodes would read it at once
            self.members = Verdict.from_json(json.loads(self._store.get(_WHOLE))).members

    def _announce(self) -> None:
        ticket = int(self._store.add(f"{_ROLL}/count", 1))
        self._me = replace(self._me, ticket=ticket)
        self._store.add(f"{_ROLL}/beat/{ticket}", 1)
        self._store.set(f"{_ROLL}/node/{ticket}", json.dumps(self._me.to_json()))

    def _await_verdict(self) -> tuple[Finding | None, list[int]]:
        """Return why the run cannot begin, or None, and the tickets of the nodes that begin it."""
        while True:
            waited_s = self._waiting.waited_s
            if self._hosts:
                self._call(waited_s)
            content = self._store.find(_VERDICT)
            if content is not None:
                found = json.loads(content)
                self._settle(bool(found.get("signed")))
                return found["finding"] and Finding.from_json(found["finding"]), found["tickets"]
            if waited_s > self._limit_s + _PATIENCE_S:  # the head is alive but decides nothing
                return self._missing([self._me], waited_s), []
            awaited = self._store.find(_AWAITED) if self._waiting.is_due else None
            if awaited is not None:
                self._waiting.show(Notice.from_json(json.loads(awaited)))
            time.sleep(self._tick_s)
            self._store.add(f"{_ROLL}/beat/{self._me.ticket}", 1)

    def _settle(self, is_signed: bool) -> None:
        """Record whether all members sign; if not, no node signs from now on."""
        self.is_signed = is_signed
        if not is_signed and not self._needs_secret:
            self._store.signing.drop()

    # On the head

    def _call(self, waited_s: float) -> None:
        """Check which nodes are there, and publish the verdict as soon as there is one."""
        self._look()
        present = self._present()
        newest = max((seen.first for seen in self._seen.values()), default=0.0)
        sure = frozenset(ticket for ticket, seen in self._seen.items() if seen.since > newest)
        signed = [node for node in present if self._seen[node.ticket].is_signed]
        verdict = presence.judge(signed, head=self._head, sure=sure)  # others may be strangers
        if verdict is None or not verdict.members:
            verdict = presence.judge(present, head=self._head, sure=sure)
        if verdict is None and waited_s > self._limit_s:
            verdict = Verdict(finding=self._missing(present, waited_s))
        if verdict is not None:
            self._publish(verdict)
            return
        if waited_s > _GONE_S:
            self._notes.leave()
        awaited = self._describe(present)
        if awaited != self._awaited:
            self._awaited = awaited
            self._store.set(_AWAITED, json.dumps(awaited.to_json()))

    def _describe(self, present: list[Arrived]) -> Notice:
        """Return the notice about awaited nodes, as all nodes print it."""
        if self._waiting.is_due and time.monotonic() > self._read_notes_s:
            self._read_notes_s = time.monotonic() + _NOTES_S
            self._away = self._notes_of_absent(present)
        mine = self._notes.mine
        fix = unreachable.advice(
            mine, self._away, num_missing=presence.num_missing(present, head=self._head)
        )
        lines = unreachable.hearsay(mine, self._away)
        return presence.notice(
            present, head=self._head, hosts=self._hosts_by_rank, evidence=lines, fix=fix
        )

    def _notes_of_absent(self, present: list[Arrived]) -> list[Note]:
        here = {(node.host, node.pid) for node in present} | {
            node.rank for node in present if node.rank >= 0
        }
        return [
            note for note in self._notes.read() if not {(note.host, note.pid), note.rank} & here
        ]

    def _publish(self, verdict: Verdict) -> None:
        """Publish the verdict, and a short form that a thousand waiting nodes read at once."""
        tickets = [member.ticket for member in verdict.members]
        signed = self._store.signing.is_on and all(
            self._seen[ticket].is_signed for ticket in tickets
        )
        told = verdict.finding and verdict.finding.to_json()
        texts = {
            _WHOLE: json.dumps({**verdict.to_json(), "signed": signed}),
            _VERDICT: json.dumps({"finding": told, "tickets": tickets, "signed": signed}),
        }
        # The verdict is signed even if it says that no node signs from now on: its readers still
        # verify signatures.
        contents = {key: self._store.closed(key, text) for key, text in texts.items()}
        self._settle(signed)
        for key, content in contents.items():
            self._store.underlying_store.set(key, content)

    def _present(self) -> list[Arrived]:
        """Return the nodes with a recent sign of life, in the order of their tickets."""
        gone_s = time.monotonic() - max(_GONE_S, 4 * self._tick_s)
        return [seen.who for _, seen in sorted(self._seen.items()) if seen.since > gone_s]

    def _look(self) -> None:
        now = time.monotonic()
        count = int(self._store.add(f"{_ROLL}/count", 0))
        most = max(self._seen, default=0) + _AHEAD  # anybody can raise the counter
        for ticket in set(range(1, min(count, most) + 1)) - set(self._seen):
            # else the node has not written its announcement yet
            if self._store.check([f"{_ROLL}/beat/{ticket}", f"{_ROLL}/node/{ticket}"]):
                content, is_signed = self._store.peek(f"{_ROLL}/node/{ticket}")
                who = _parse(content) if is_signed or not self._needs_secret else None
                if who is not None:
                    self._seen[ticket] = _Seen(who, is_signed, now)
        # counters, which cannot be signed
        beats = self._store.underlying_store.multi_get(
            [f"{_ROLL}/beat/{ticket}" for ticket in self._seen]
        )
        for seen, beat in zip(self._seen.values(), beats, strict=True):
            if bytes(beat) != seen.beat:
                seen.beat, seen.since = bytes(beat), now

    def _missing(self, present: list[Arrived], waited_s: float) -> Finding:
        finding = presence.missing(
            present, head=self._head, waited_s=waited_s, hosts=self._hosts_by_rank, evidence=()
        )
        away = self._notes_of_absent(present)
        if self._hosts and away:
            self._notes.leave(ended=True)  # the absent nodes may still read where the head was
        num_missing = presence.num_missing(present, head=self._head)
        return unreachable.explain_missing(finding, self._notes.mine, away, num_missing=num_missing)

    # After the verdict

    def _leave(self, finding: Finding) -> None:
        """Raise the finding that ends all nodes; the head leaves last, as it hosts the store."""
        heard = int(self._store.add(f"{_ROLL}/heard", 1))
        if self._hosts:
            start_s = time.monotonic()
            some_may_come = finding.name == "node-missing"
            while time.monotonic() - start_s < _READ_S:
                is_late = time.monotonic() - start_s > _LINGER_S
                if heard >= self._num_alive() and (is_late or not some_may_come):
                    break
                time.sleep(0.05)
                heard = int(self._store.add(f"{_ROLL}/heard", 0))
        raise RunError(finding)

    def _num_alive(self) -> int:
        """Return how many nodes have given a recent sign of life or have just read the verdict."""
        self._look()
        return len(self._present())

    def _come_late(self) -> None:
        """Return if torch's rendezvous may have a place for this late node.

        Raises:
            RunError: The run has ended or has no place for this node.
        """
        whole = json.loads(self._store.get(_WHOLE))
        self._settle(bool(whole.get("signed")))
        verdict = Verdict.from_json(whole)
        finding = presence.judge_newcomer(self._me, verdict, head=self._head)
        if finding is not None:
            raise RunError(finding)
        least, most = self._head.nodes
        if least < most:  # torch lets spare nodes wait for a place
            return
        waited_s, full = 0.0, list[str]()
        while (taken := self._taken()) is None or taken:
            full = taken or full
            if waited_s > (_PLACE_S if taken else self._limit_s):
                raise RunError(presence.too_many(self._me, full, num_nodes=most))
            time.sleep(0.2)
            waited_s += 0.2

    def _taken(self) -> list[str] | None:
        content = self._store.find(_PLACES)
        taken: list[str] | None = None if content is None else json.loads(content)
        return taken


def _parse(content: bytes) -> Arrived | None:
    try:
        return Arrived.from_json(json.loads(content))
    except (ValueError, TypeError, KeyError):
        return None  # not written by a node


def tell_places(store: SignedStore, hosts: list[str]) -> None:
    """Publish the hosts that have the places of the run, for late nodes; none while it re-forms."""
    store.set(_PLACES, json.dumps(hosts))


def keep_places(store: SignedStore, attempt: SignedStore, *, node: int, num_nodes: int) -> None:
    """Record which hosts have the places of this attempt: node 0 collects what the nodes report.

    Args:
        store: The store of the run, which late nodes read.
        attempt: The store of the attempt.
        node: Rank of this node.
        num_nodes: Number of nodes.
    """
    attempt.set(f"paceline/host/{node}", socket.gethostname())
    if node == 0:
        keys = [f"paceline/host/{other}" for other in range(num_nodes)]
        try:
            attempt.wait(keys, timedelta(seconds=_HOSTS_S))
            tell_places(store, [host.decode() for host in attempt.find_all(keys).values()])
        except DistStoreError:
            tell_places(store, [f"{num_nodes} nodes"])
