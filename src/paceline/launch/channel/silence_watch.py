"""Name silent nodes, and record lost ones, from the heartbeats that the control channel records.

The head does so for all nodes and publishes the result; the other nodes adopt it. Every node
watches the store itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from paceline import deadlines
from paceline.errors import Notice
from paceline.launch.channel import silence
from paceline.launch.channel.heartbeats import Heartbeats
from paceline.launch.channel.remote import Remote
from paceline.launch.channel.silence import Loss, Silences
from paceline.launch.channel.surroundings import Surroundings

# A launcher whose connection was closed by something else reconnects within this time and sends a
# heartbeat.
CLOSED_S = 4.0
# How often to ask the scheduler about a silent node.
_ASK_STATE_S = 15.0


class SilenceWatch:
    """Decides which nodes are silent and which are lost; prints notices about the silent ones."""

    def __init__(
        self,
        remote: Remote,  # where to record what is known about the other nodes
        heartbeats: Heartbeats,  # of the watched nodes
        *,
        node: int,
        tick_s: float,  # between two heartbeats of a node
        surroundings: Surroundings,
    ) -> None:
        self._remote = remote
        self._heartbeats = heartbeats
        self._node = node
        self._tick_s = tick_s
        self._surroundings = surroundings
        self._silences: dict[int, Silences] = {}  # by node rank
        self._store_silences = Silences()
        self._state_asked_s: dict[tuple[int, bytes], float] = {}  # by node and its last heartbeat

    def watch_store(self, silent_s: float, *, is_gone: bool) -> None:
        """Print a notice when the store stops or resumes answering; record a lost host."""
        host = self._surroundings.store_host
        if is_gone:
            self._remote.lose_store(Loss(host, silence.REFUSED, silent_s))
        if self._remote.store_lost:
            return
        self._remote.store_silent = self._store_silences.is_news(silent_s, default_s=_notice_s())
        notice = self._update(
            self._store_silences,
            silence.store_named(host),
            silent_s,
            is_silent=self._remote.store_silent,
        )
        if notice is not None:
            self._surroundings.inform(notice)
        loss = self._judge(host, silence.Silence(silent_s, self._heartbeats.stepless_s))
        if loss is not None:
            self._remote.lose_store(loss)

    def watch_nodes(self) -> None:
        """Print a notice when a node falls silent or is heard again; record when it is lost."""
        for node, record in self._heartbeats.records.items():
            state = self._heartbeats.silence(node)
            if state.silent_s > _notice_s():
                self._ask_state(node)
            if node not in self._remote.lost:
                self._watch_node(node, record.host, state)

    def _watch_node(self, node: int, host: str, state: silence.Silence) -> None:
        is_silent = self._silences_of(node).is_news(state.silent_s, default_s=_notice_s())
        self._set_silent(node, host, is_silent, silent_s=state.silent_s)
        loss = self._judge(host, state)
        if loss is not None:
            self._remote.lose(node, loss)

    def _judge(self, host: str, state: silence.Silence) -> Loss | None:
        """Return why a host is lost; None if it may come back."""
        closed_s = max(CLOSED_S, 3 * self._tick_s)
        reason = silence.judge(
            state, node_timeout_s=self._surroundings.node_timeout_s, closed_s=closed_s
        )
        return Loss(host, reason, round(state.silent_s, 1)) if reason else None

    def _set_silent(self, node: int, host: str, is_silent: bool, *, silent_s: float) -> None:
        """Record whether a node is silent; print what is new, unless the head prints it too."""
        if is_silent:
            self._remote.silent.setdefault(node, host)
        else:
            self._remote.silent.pop(node, None)
        notice = self._update(
            self._silences_of(node), silence.named(node, host), silent_s, is_silent=is_silent
        )
        if notice is not None and not self._surroundings.is_quiet:
            self._surroundings.inform(notice)

    def _silences_of(self, node: int) -> Silences:
        return self._silences.setdefault(node, Silences())

    def _update(
        self, silences: Silences, name: str, silent_s: float, *, is_silent: bool
    ) -> Notice | None:
        return silences.update(
            name,
            silent_s,
            is_silent=is_silent,
            now_s=self._heartbeats.now_s,
            node_timeout_s=self._surroundings.node_timeout_s,
        )

    def _ask_state(self, node: int) -> None:
        """Ask the scheduler about a silent node, in a thread because the answer may take seconds.

        A new silence is a new question.
        """
        now_s, record = self._heartbeats.now_s, self._heartbeats.records[node]
        beat = record.beat
        if now_s - self._state_asked_s.get((node, beat), -_ASK_STATE_S) < _ASK_STATE_S:
            return
        self._state_asked_s[node, beat] = now_s

        def ask() -> None:
            state = self._surroundings.node_state(node)
            if record.beat == beat:  # else a heartbeat has come in the meantime
                record.state = state

        threading.Thread(target=ask, name="paceline-node-state", daemon=True).start()

    # Exchange between nodes

    def to_json(self) -> str:
        """Return which nodes are silent and which are lost, for the other nodes."""
        losses = {node: loss.to_json() for node, loss in dict(self._remote.losses).items()}
        store_loss = self._remote.store_loss
        store_lost = None if store_loss is None else store_loss.to_json()
        return json.dumps({"silent": self._remote.silent, "lost": losses, "store_lost": store_lost})

    def adopt(self, nodes: Mapping[str, Any]) -> None:
        """Apply what the head has published about other nodes."""
        silent = {int(node): host for node, host in nodes["silent"].items()}
        notice_s = _notice_s() + self._tick_s
        for node in (silent.keys() | self._remote.silent.keys()) - {self._node, 0}:
            is_silent = node in silent
            host = silent.get(node) or self._remote.silent.get(node, "")
            self._set_silent(node, host, is_silent, silent_s=notice_s if is_silent else 0.0)
        for lost, loss in nodes["lost"].items():
            self._remote.lose(int(lost), Loss(*loss))
        if nodes["store_lost"] is not None:
            self._remote.lose_store(Loss(*nodes["store_lost"]))


def _notice_s() -> float:
    """Return how long a silence lasts before a notice, in seconds."""
    return deadlines.scaled(deadlines.SILENT_NODE_NOTICE)
