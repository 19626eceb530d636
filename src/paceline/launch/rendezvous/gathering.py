"""Watch the nodes between the roll call and the first attempt, and name a node that dies then.

Each node writes a heartbeat until the attempt begins and the control channel writes its own. The
node that hosts the store watches all heartbeats and publishes what it sees, so that a thousand
nodes do not read each other's heartbeats.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from paceline import deadlines
from paceline.errors import Finding, Notice
from paceline.launch.channel import liveness, silence
from paceline.launch.channel.heartbeats import Heartbeats, write_beat
from paceline.launch.channel.silence import Loss
from paceline.launch.outcome import root_cause
from paceline.launch.rendezvous.presence import Arrived
from paceline.machine.signed_store import SignedStore

_KEY = "paceline/gathering"
_LEFT = b"left"
_CLOSED_S = 4.0


class Gathering:
    """This node's heartbeat, and the state of the other nodes."""

    def __init__(
        self,
        store: Any,  # of the run
        # those that begin the run, on the node that hosts the store; else empty
        members: Sequence[Arrived],
        *,
        launcher: str,  # this node's, as ``liveness.name_of`` returns it
        num_nodes: int,
        inform: Callable[[Notice], None],
        node_timeout_s: float,  # how long a node may be silent
    ) -> None:
        self._store = SignedStore.of(store).clone()
        self._members = {liveness.name_of(member.host, member.pid): member for member in members}
        self._members.pop(launcher, None)
        self._launcher = launcher
        self._inform = inform
        self._node_timeout_s = node_timeout_s
        self._tick_s = max(0.5, num_nodes / 500)
        self._heartbeats = Heartbeats(range(len(self._members)), tick_s=self._tick_s)
        self._silent: list[Notice] = []  # in the order in which nodes fell silent
        self._leaving = threading.Event()
        # the finding to end the run with because a node is lost; None if no node is lost
        self.lost: Finding | None = None
        self._thread = threading.Thread(target=self._live, name="paceline-gathering", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching: the attempt has begun, and its control channel watches the nodes."""
        self._leaving.set()

    def _live(self) -> None:
        count = 0
        try:
            while not self._leaving.wait(self._tick_s):
                count += 1
                self._store.set(f"{_KEY}/{self._launcher}", write_beat(count, self._launcher, 0))
                if self._members:
                    self._look()
                else:
                    self._adopt_news()
            self._store.set(f"{_KEY}/{self._launcher}", _LEFT)
        except RuntimeError:
            return  # the store is gone; the agent will see that as well

    def _look(self) -> None:
        """Read the heartbeats of all other nodes, and publish what has changed."""
        self._heartbeats.advance()
        before = (len(self._silent), self.lost)
        for place, (name, member) in enumerate(self._members.items()):
            record = self._heartbeats.records[place]
            beat = self._store.find(f"{_KEY}/{name}") or record.beat
            self._heartbeats.record(place, beat)
            if beat != _LEFT:
                record.is_closed = self._store.find(liveness.closed_key(name)) is not None
                self._judge(place, member)
        if before != (len(self._silent), self.lost):
            lost = self.lost and self.lost.to_json()
            news = {"silent": [notice.to_json() for notice in self._silent], "lost": lost}
            self._store.set(f"{_KEY}/news", json.dumps(news))

    def _judge(self, place: int, member: Arrived) -> None:
        """Print a notice when a node falls silent, and record when it is lost."""
        state = self._heartbeats.silence(place)
        node = member.ticket - 1 if member.rank is None else member.rank
        notice_s = deadlines.scaled(deadlines.SILENT_NODE_NOTICE)
        name = silence.named(node, member.host)
        is_named = any(notice.what.startswith(name) for notice in self._silent)
        if state.silent_s > notice_s and not is_named:
            self._report(
                silence.notice(name, silent_s=state.silent_s, node_timeout_s=self._node_timeout_s)
            )
        reason = silence.judge(
            state, node_timeout_s=self._node_timeout_s, closed_s=_CLOSED_S + self._tick_s
        )
        if reason and self.lost is None:
            losses = {name: Loss(member.host, reason, state.silent_s)}
            self.lost = root_cause.judge([], lost=[name], losses=losses).finding

    def _report(self, notice: Notice) -> None:
        """Print a notice, and keep it for the other nodes."""
        self._silent.append(notice)
        self._inform(notice)

    def _adopt_news(self) -> None:
        """Adopt the notices and the loss that the node that hosts the store has published."""
        content = self._store.find(f"{_KEY}/news")
        if content is None:
            return
        news = json.loads(content)
        for values in news["silent"][len(self._silent) :]:
            self._report(Notice.from_json(values))
        self.lost = Finding.from_json(news["lost"]) if news["lost"] else None
