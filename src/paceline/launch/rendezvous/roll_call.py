"""Call the roll: nodes announce themselves in the store, and its host decides who is there."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from paceline.errors import Finding, Notice, RunError
from paceline.launch.rendezvous import presence, unreachable
from paceline.launch.rendezvous.node_wait import Waiting
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.launch.rendezvous.presence import Arrived, PresenceVerdict
from paceline.machine.signed_store import SignedStore
from paceline.text.plain_data import read_as

# Raw keys, outside every prefix: nodes meet here before there is an attempt.
_ROLL = "paceline/roll"
_VERDICT = f"{_ROLL}/verdict"
_WHOLE = f"{_ROLL}/whole-verdict"
_AWAITED = f"{_ROLL}/awaited"
_PLACES = f"{_ROLL}/places"
_READERS = f"{_ROLL}/heard"
# Nodes give signs of life many times within this time. A node without one was interrupted.
_GONE_S = 3.0
# How long the store outlives the verdict that a node is missing: that node may come just then.
_LINGER_S = 1.0
# How long nodes may need to read a verdict: seconds on a busy machine.
_READ_S = 10.0
# How long a node waits for a place in a complete run: one of its nodes may soon be replaced.
_PLACE_S = 8.0
_AHEAD = 4096  # how many tickets may be issued between two reads
_HOSTS_S = 3.0
# How often the notes are read: their folder may be on a file server.
_NOTES_S = 5.0
# Nodes wait for the head's verdict, which may arrive shortly after their own limit.
_PATIENCE_S = 10.0


@dataclass
class _Presence:
    """What the head knows about one node."""

    node: Arrived  # the node, as it announced itself
    is_signed: bool  # whether the announcement was signed
    arrival_s: float  # when the node came
    beat: bytes = b""  # its last sign of life
    beat_s: float = 0.0  # when that last sign of life came


class Roll:
    """The roll call, as one node takes part in it."""

    def __init__(
        self,
        store: Any,
        me: Arrived,  # its ticket is not known yet
        head: Arrived,
        *,
        is_head: bool,
        limit_s: float,  # how long to wait for nodes
        hosts_by_rank: list[str],  # if a scheduler provides them; else empty
        notes: Notes,  # of the nodes in the shared folder
        inform: Callable[[Notice], None],
        needs_secret: bool = False,  # nodes that do not sign are excluded from the run
        in_pods: bool = False,  # nobody starts the nodes by hand
    ) -> None:
        self._store = SignedStore.of(store)
        self._needs_secret = needs_secret
        self._in_pods = in_pods
        self._me = me
        self._head = head
        self._is_head = is_head
        self._limit_s = limit_s
        self._hosts_by_rank = hosts_by_rank
        self._notes = notes
        self._waiting = Waiting(inform, limit_s=limit_s)
        self._next_notes_s = 0.0  # when to read the notes again
        self._absent_notes: list[Note] = []
        self._presences: dict[int, _Presence] = {}  # by ticket
        self._awaited: Notice | None = None
        self._tick_s = min(1.0, max(0.05, me.nodes[1] / 1000))
        # the nodes that begin the run, on the node that hosts the store; empty elsewhere
        self.members: tuple[Arrived, ...] = ()
        self.is_signed = False  # whether all members sign

    def answer(self) -> None:
        """Announce this node and return when the run can begin.

        Raises RunError if the run cannot begin; all nodes that are up get the same finding.
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
        if self._is_head:  # else a thousand nodes would read it at once
            self.members = read_as(PresenceVerdict, json.loads(self._store.get(_WHOLE))).members

    def _announce(self) -> None:
        ticket = int(self._store.add(f"{_ROLL}/count", 1))
        self._me = replace(self._me, ticket=ticket)
        self._store.add(f"{_ROLL}/beat/{ticket}", 1)
        self._store.set(f"{_ROLL}/node/{ticket}", json.dumps(asdict(self._me)))

    def _await_verdict(self) -> tuple[Finding | None, list[int]]:
        """Return why the run cannot begin, or None, and the tickets of the nodes that begin it."""
        while True:
            waited_s = self._waiting.waited_s
            if self._is_head:
                self._decide(waited_s)
            content = self._store.find(_VERDICT)
            if content is not None:
                verdict = json.loads(content)
                self._settle(bool(verdict.get("signed")))
                finding = verdict["finding"] and Finding.from_json(verdict["finding"])
                return finding, verdict["tickets"]
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

    def _decide(self, waited_s: float) -> None:
        """Check which nodes are there, and publish the verdict as soon as there is one."""
        self._look()
        present = self._present()
        verdict = self._judge(present)
        if verdict is None and waited_s > self._limit_s:
            verdict = PresenceVerdict(finding=self._missing(present, waited_s))
        if verdict is not None:
            self._publish(verdict)
            return
        if waited_s > _GONE_S:
            self._notes.leave()
        awaited = self._describe(present)
        if awaited != self._awaited:
            self._awaited = awaited
            self._store.set(_AWAITED, json.dumps(awaited.to_json()))

    def _judge(self, present: list[Arrived]) -> PresenceVerdict | None:
        """Return whether the run can begin, with the nodes that sign if these are enough."""
        presences = self._presences
        newest_s = max((entry.arrival_s for entry in presences.values()), default=0.0)
        sure = frozenset(ticket for ticket, entry in presences.items() if entry.beat_s > newest_s)
        signed = [node for node in present if presences[node.ticket].is_signed]
        verdict = presence.judge(signed, head=self._head, sure=sure)  # others may be strangers
        if verdict is not None and verdict.members:
            return verdict
        return presence.judge(present, head=self._head, sure=sure)

    def _describe(self, present: list[Arrived]) -> Notice:
        """Return the notice about awaited nodes, as all nodes print it."""
        if self._waiting.is_due and time.monotonic() > self._next_notes_s:
            self._next_notes_s = time.monotonic() + _NOTES_S
            self._absent_notes = self._notes_of_absent(present)
        mine = self._notes.mine
        num_missing = presence.num_missing(present, head=self._head)
        advice = unreachable.advice(mine, self._absent_notes, num_missing=num_missing)
        return presence.notice(
            present,
            head=self._head,
            hosts=self._hosts_by_rank,
            evidence=unreachable.evidence(mine, self._absent_notes),
            fix=advice or unreachable.LOOK_AT_PODS * self._in_pods,
        )

    def _notes_of_absent(self, present: list[Arrived]) -> list[Note]:
        launchers = {(node.host, node.pid) for node in present}
        ranks = {node.rank for node in present if node.rank is not None}
        return [
            note
            for note in self._notes.read()
            if (note.host, note.pid) not in launchers and note.rank not in ranks
        ]

    def _publish(self, verdict: PresenceVerdict) -> None:
        """Publish the verdict, and a short form that a thousand waiting nodes read at once."""
        tickets = [member.ticket for member in verdict.members]
        all_sign = all(self._presences[ticket].is_signed for ticket in tickets)
        is_signed = self._store.signing.is_on and all_sign
        whole = {**asdict(verdict), "signed": is_signed}
        short = {"finding": whole["finding"], "tickets": tickets, "signed": is_signed}
        texts = {_WHOLE: json.dumps(whole), _VERDICT: json.dumps(short)}
        # The verdict is signed even if it says that no node signs from now on: its readers still
        # verify signatures.
        contents = {key: self._store.closed(key, text) for key, text in texts.items()}
        self._settle(is_signed)
        for key, content in contents.items():
            self._store.underlying_store.set(key, content)

    def _present(self) -> list[Arrived]:
        """Return the nodes with a recent sign of life, in the order of their tickets."""
        gone_s = time.monotonic() - max(_GONE_S, 4 * self._tick_s)
        presences = [entry for _, entry in sorted(self._presences.items())]
        return [entry.node for entry in presences if entry.beat_s > gone_s]

    def _look(self) -> None:
        """Read the announcements of new nodes and the signs of life of all nodes."""
        now_s = time.monotonic()
        count = int(self._store.add(f"{_ROLL}/count", 0))
        most = max(self._presences, default=0) + _AHEAD  # anybody can raise the counter
        for ticket in set(range(1, min(count, most) + 1)) - set(self._presences):
            newcomer = self._read_announcement(ticket, now_s)
            if newcomer is not None:
                self._presences[ticket] = newcomer
        # counters, which cannot be signed
        keys = [f"{_ROLL}/beat/{ticket}" for ticket in self._presences]
        beats = self._store.underlying_store.multi_get(keys)
        for entry, beat in zip(self._presences.values(), beats, strict=True):
            if bytes(beat) != entry.beat:
                entry.beat, entry.beat_s = bytes(beat), now_s

    def _read_announcement(self, ticket: int, now_s: float) -> _Presence | None:
        """Return a node that has come.

        None if it has not written its announcement yet, or was to sign it and did not.
        """
        if not self._store.check([f"{_ROLL}/beat/{ticket}", f"{_ROLL}/node/{ticket}"]):
            return None
        content, is_signed = self._store.peek(f"{_ROLL}/node/{ticket}")
        node = _parse(content) if is_signed or not self._needs_secret else None
        return None if node is None else _Presence(node, is_signed, now_s)

    def _missing(self, present: list[Arrived], waited_s: float) -> Finding:
        finding = presence.missing(
            present, head=self._head, waited_s=waited_s, hosts=self._hosts_by_rank, evidence=()
        )
        if self._in_pods:
            finding = replace(finding, fix=unreachable.LOOK_AT_PODS)
        notes = self._notes_of_absent(present)
        if self._is_head and notes:
            self._notes.leave(ended=True)  # the absent nodes may still read where the head was
        num_missing = presence.num_missing(present, head=self._head)
        return unreachable.explain_missing(
            finding, self._notes.mine, notes, num_missing=num_missing
        )

    # After the verdict

    def _leave(self, finding: Finding) -> None:
        """Raise the finding that ends all nodes; the head leaves last, as it hosts the store."""
        num_readers = int(self._store.add(_READERS, 1))
        if self._is_head:
            start_s = time.monotonic()
            linger_s = _LINGER_S if finding.name == "node-missing" else 0.0
            while (lingered_s := time.monotonic() - start_s) < _READ_S:
                if num_readers >= self._num_alive() and lingered_s >= linger_s:
                    break
                time.sleep(0.05)
                num_readers = int(self._store.add(_READERS, 0))
        raise RunError(finding)

    def _num_alive(self) -> int:
        """Return how many nodes have given a recent sign of life or have just read the verdict."""
        self._look()
        return len(self._present())

    def _come_late(self) -> None:
        """Return if torch's rendezvous has a place for this late node, else raise RunError."""
        whole = json.loads(self._store.get(_WHOLE))
        self._settle(bool(whole.get("signed")))
        verdict = read_as(PresenceVerdict, whole)
        finding = presence.judge_newcomer(self._me, verdict, head=self._head)
        if finding is not None:
            raise RunError(finding)
        least, most = self._head.nodes
        if least < most:  # torch lets spare nodes wait for a place
            return
        waited_s, last_hosts = 0.0, list[str]()
        while (hosts := self._hosts_in_run()) is None or hosts:
            last_hosts = hosts or last_hosts
            if waited_s > (_PLACE_S if hosts else self._limit_s):
                raise RunError(presence.too_many(self._me, last_hosts, num_nodes=most))
            time.sleep(0.2)
            waited_s += 0.2

    def _hosts_in_run(self) -> list[str] | None:
        """Return the hosts that have the places of the run.

        Empty while the run re-forms; None before its first attempt.
        """
        content = self._store.find(_PLACES)
        hosts: list[str] | None = None if content is None else json.loads(content)
        return hosts


def _parse(content: bytes) -> Arrived | None:
    try:
        return read_as(Arrived, json.loads(content))
    except (ValueError, TypeError, KeyError):
        return None  # not written by a node


def publish_places(store: SignedStore, hosts: list[str]) -> None:
    """Publish the hosts that have the places of the run, for late nodes; none while it re-forms."""
    store.set(_PLACES, json.dumps(hosts))


def record_places(store: SignedStore, attempt: SignedStore, *, node: int, num_nodes: int) -> None:
    """Record which hosts have the places of this attempt: node 0 collects what the nodes report."""
    attempt.set(f"paceline/host/{node}", socket.gethostname())
    if node == 0:
        keys = [f"paceline/host/{other}" for other in range(num_nodes)]
        try:
            attempt.wait(keys, timedelta(seconds=_HOSTS_S))
            publish_places(store, [host.decode() for host in attempt.find_all(keys).values()])
        except DistStoreError:
            publish_places(store, [f"{num_nodes} nodes"])
