"""The control channel: heartbeats and messages of a run's launchers, through the run's store.

Every node's launcher has a thread that writes a heartbeat several times a second and checks whether
any node has failed. The head watches the heartbeats of all nodes; the others watch the head's
heartbeat and whether the store answers. A silent node is named soon. It is lost after a long time,
or when it is proven that it cannot come back (``silence``). Nothing blocks the main path for long,
and a network that was cut and came back does no harm (``connection``).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline import deadlines
from paceline.errors import Notice
from paceline.launch.channel import liveness, silence
from paceline.launch.channel.connection import Channel, Operation
from paceline.launch.channel.heartbeats import Heartbeats, write_beat
from paceline.launch.channel.remote import Remote
from paceline.launch.channel.signed_store import SignedStore
from paceline.launch.channel.silence import Loss, Silences

# A launcher whose connection was closed by something else reconnects within this time and sends a
# heartbeat.
_CLOSED_S = 4.0
# Once a heartbeat is this late, check whether its launcher's connection is closed.
_LATE_S = 1.5
# How often to ask the scheduler about a silent node.
_ASK_STATE_S = 15.0
_RECONNECT_S = 0.5
# After this many heartbeats a node checks whether its messages are still in the store.
_SAY_AGAIN = 4


def _no_notice(_: Notice) -> None:
    pass


@dataclass(frozen=True)
class Surroundings:
    """What a control channel needs from the launcher around it.

    Attributes:
        inform: Prints a notice.
        count_steps: Returns how many steps this node's ranks have made.
        node_state: Takes a node rank and returns the scheduler's state of that node; empty
            without a scheduler. May take seconds.
        node_timeout_s: How long a node may be silent without any training step, in seconds.
        store_host: Host of the run's store.
        is_quiet: Whether all nodes print to one output and another node prints for all.
    """

    inform: Callable[[Notice], None] = _no_notice
    count_steps: Callable[[], int] = lambda: 0
    node_state: Callable[[int], str] = lambda node: ""
    node_timeout_s: float = deadlines.NODE_TIMEOUT
    store_host: str = ""
    is_quiet: bool = False


class ControlChannel:
    """One node's view of the other nodes, for one attempt of a run.

    Args:
        store: The store of the attempt, which no other attempt shares.
        node: Rank of this node.
        num_nodes: Number of nodes.
        surroundings: The launcher around the channel.
    """

    def __init__(
        self,
        store: Any,
        *,
        node: int,
        num_nodes: int,
        surroundings: Surroundings = Surroundings(),
    ) -> None:
        self.node = node
        self.num_nodes = num_nodes
        self.remote = Remote()
        self.clock_offset_ns = 0
        self._surroundings = surroundings
        self._launcher = liveness.name_of(socket.gethostname(), os.getpid())
        store = SignedStore.of(store)
        self._is_signed = store.signing.is_on
        self._said: dict[str, str] = {}  # what this node has written, by key
        mark = self._key("beat", node)
        store.set(mark, write_beat(0, self._launcher, 0))
        self._beats = Channel(store, mark=mark)
        self._asking = Channel(store, mark=mark)  # for reads of callers
        self._tick_s = min(2.0, max(0.25, num_nodes / 400))
        self._watched = range(1, num_nodes) if node == 0 else range(1)
        self._heartbeats = Heartbeats(self._watched, tick_s=self._tick_s)
        self._store_heard_s = 0.0  # on the heartbeats' clock
        self._answered = 0  # number of heartbeats that the store has accepted
        self._count = 0
        self._steps = 0
        self._beat: Operation | None = None
        self._asked_state_s: dict[tuple[int, bytes], float] = {}  # by node and its last heartbeat
        self._published = ""
        self._silences: dict[int, Silences] = {}  # by node rank
        self._store_silences = Silences()
        self._num_told = 0
        self._news: dict[str, bytes] = {}
        self._unanswered = set(range(1, num_nodes)) if node == 0 else set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="paceline-board", daemon=True)
        self._thread.start()
        threading.Thread(target=self._reconnect, name="paceline-reconnect", daemon=True).start()

    def fail(self) -> None:
        """Publish that this node has failed: all nodes stop their ranks."""
        self._write(self._key("failed"), str(self.node))

    def stop(self, signum: int) -> None:
        """Publish that a signal has asked this node to end: all nodes end."""
        self._write(self._key("stop"), str(int(signum)))

    def hurry(self) -> None:
        """Ask all nodes to end their remaining ranks at once."""
        self._write(self._key("hurry"), "1")

    def call_look(self, number: int) -> None:
        """Ask all nodes to look where their ranks are; several nodes may ask for the same look."""
        if number > self.remote.look:
            self.remote.look = number
            self._write(self._key("look"), str(number))

    def await_head(self, kind: str, *, until_s: float, give_up: Callable[[], bool]) -> Any:
        """Return what the head publishes under a kind.

        None if nothing came within ``until_s`` seconds, or ``give_up()`` returned True.
        """
        deadline = time.monotonic() + until_s
        while (content := self._get(self._key(kind, 0))) is None:
            if self.remote.store_lost or time.monotonic() > deadline or give_up():
                return None
            time.sleep(0.05)
        return json.loads(content)

    def post(self, kind: str, content: Any) -> None:
        """Publish this node's value of a kind, such as how its ranks ended."""
        self.announce(kind, self.node, content)

    def tell(self, kind: str, content: Any) -> None:
        """Publish a new value of a kind over the old one; the head's next ``hear`` returns it."""
        self.post(kind, content)
        self._num_told += 1
        # Any change of this value is news. It is not a counter: counters cannot be signed.
        self._write(self._key(f"{kind}-news"), f"{self.node} {self._num_told}")

    def hear(self, kind: str) -> dict[int, Any]:
        """Return the values of all nodes by node rank, if any has changed since the last call.

        Empty if nothing has changed, or if some node has not published yet. This does not wait, and
        sends one request if nothing is new.
        """

        def read(store: SignedStore) -> list[bytes]:
            news = store.find(self._key(f"{kind}-news"))
            if news is None or news == self._news.get(kind):
                return []
            found = store.find_all(self._key(kind, node) for node in range(self.num_nodes))
            if len(found) < self.num_nodes:
                return []
            self._news[kind] = news
            return list(found.values())

        return dict(enumerate(map(json.loads, self._asking.ask(read) or [])))

    def announce(self, kind: str, number: int, content: Any) -> None:
        """Publish a value for all nodes, the ``number``-th of a kind."""
        self._write(self._key(kind, number), json.dumps(content))

    def announced(self, kind: str, number: int) -> Any:
        """Return the ``number``-th value of a kind; None if it is not published yet."""
        content = self._get(self._key(kind, number))
        return None if content is None else json.loads(content)

    def collect(
        self, kind: str, *, until_s: float, give_up: Callable[[], bool] = lambda: False
    ) -> dict[int, Any]:
        """Return the nodes' values by node rank; wait for all nodes that are not lost.

        Args:
            kind: The kind, as in ``post``.
            until_s: The maximum wait, in seconds; nodes that are silent until then are left out.
            give_up: Returns whether to stop waiting; called several times a second.
        """
        found: dict[int, Any] = {}
        deadline = time.monotonic() + until_s
        while True:
            for node in set(range(self.num_nodes)) - set(found):
                content = self._get(self._key(kind, node))
                if content is not None:
                    found[node] = json.loads(content)
            missing = set(range(self.num_nodes)) - set(found) - self.remote.lost
            if not missing or self.remote.store_lost or time.monotonic() > deadline or give_up():
                return found
            time.sleep(0.05)

    def exchange(
        self,
        content: Any,
        *,
        until_s: float,
        linger: bool,
        give_up: Callable[[], bool] = lambda: False,
    ) -> dict[int, Any]:
        """Publish this node's account and return all accounts, as the last exchange of the nodes.

        Args:
            content: This node's account.
            until_s: The maximum wait for the other accounts, in seconds.
            linger: Whether to wait until the others have read, because the store ends with this
                process.
            give_up: Returns whether to stop waiting; called several times a second.
        """
        self.post("account", content)
        found = self.collect("account", until_s=until_s, give_up=give_up)
        self.post("bye", True)
        if linger:
            self.collect("bye", until_s=until_s)
        self.close()
        return found

    def all_have(self, kind: str, *, but_head: bool = False) -> bool:
        """Return whether every node has published a value of a kind; sends a single request.

        Args:
            kind: The kind, as in ``post``.
            but_head: Whether to leave out the head.
        """
        keys = [self._key(kind, node) for node in range(but_head, self.num_nodes)]
        return bool(
            self._asking.ask(
                lambda store: store.check(keys) and len(store.find_all(keys)) == len(keys)
            )
        )

    def answers(self, *, give_up: Callable[[], bool]) -> bool:
        """Return whether the store answers this node from now on; wait until it does or is lost.

        Args:
            give_up: Returns whether to stop waiting; called several times a second.
        """
        before = self._answered
        while self._answered < before + 2:  # the first may have been sent before the call
            if self.remote.store_lost or give_up():
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Stop sending heartbeats, and close the connections."""
        self._stop.set()
        self._beats.close()
        self._asking.close()

    def _key(self, kind: str, node: int | None = None) -> str:
        return f"paceline/{kind}" if node is None else f"paceline/{kind}/{node}"

    def _get(self, key: str) -> bytes | None:
        found: bytes | None = self._asking.ask(lambda store: store.find(key))
        return found

    def _write(self, key: str, text: str) -> None:
        """Write a value that must not get lost."""
        self._said[key] = text
        self._asking.write(lambda store: store.set(key, text))

    def _live(self) -> None:
        # While the head's clock is awaited, look more often: the interval limits the error.
        is_asking = self.node != 0
        if is_asking:
            self._beats.submit(
                lambda store: store.set(self._key("clock-ask", self.node), "1"), is_write=True
            )
        while not self._stop.wait(self._tick_s / 10 if is_asking else self._tick_s):
            self._heartbeats.advance()
            self._count_steps()
            if self._beat is None or self._beat.done.is_set():
                self._beat = self._beats.submit(self._beat_and_look, is_write=False)
            is_asking = is_asking and not self.clock_offset_ns
            self._watch()

    def _reconnect(self) -> None:
        """Open new connections if the store has not answered for long; this may take seconds."""
        while not self._stop.wait(_RECONNECT_S):
            self._beats.reconnect()
            self._asking.reconnect()

    def _count_steps(self) -> None:
        steps = self._surroundings.count_steps()
        if steps != self._steps:
            self._steps = steps
            self._heartbeats.step()

    # In the channel's thread, with the store

    def _beat_and_look(self, store: SignedStore) -> bool:
        self._count += 1
        store.set(
            self._key("beat", self.node), write_beat(self._count, self._launcher, self._steps)
        )
        self._look(store)
        if self._is_signed and self._count % _SAY_AGAIN == 0:
            self._say_again(store)
        self._store_heard_s = self._heartbeats.now_s
        self._answered += 1
        return True

    def _say_again(self, store: SignedStore) -> None:
        """Restore values that another program has overwritten.

        While the other program keeps writing, the two take turns.
        """
        said = dict(self._said)
        for key in said.keys() - store.find_all(said).keys():
            store.set(key, said[key])

    def _look(self, store: SignedStore) -> None:
        stop = store.find(self._key("stop"))
        if stop is not None:
            self.remote.stop = int(stop)
        if store.find(self._key("failed")) is not None:
            self.remote.failed = True
        if self.remote.stop and store.find(self._key("hurry")) is not None:
            self.remote.hurry = True
        look = store.find(self._key("look"))
        if look is not None:
            self.remote.look = max(self.remote.look, int(look))
        self._read_beats(store)
        if self.node == 0:
            self._answer_clock(store)
            return
        self._read_clock(store)
        nodes = store.find(self._key("nodes"))
        if nodes is not None:
            self._take_over(json.loads(nodes))

    def _read_beats(self, store: SignedStore) -> None:
        """Record the heartbeats of watched nodes, and which late nodes lost their connection."""
        beats = store.find_all(self._key("beat", node) for node in self._watched)
        for node in self._watched:
            if (beat := beats.get(self._key("beat", node))) is not None:
                self._heartbeats.hear(node, beat)
        for node, heard in self._heartbeats.heard.items():
            if heard.launcher and self._heartbeats.silence(node).silent_s > max(
                _LATE_S, 2 * self._tick_s
            ):
                heard.is_closed = _is_closed(store, heard.launcher, since_s=heard.wall_s)

    def _read_clock(self, store: SignedStore) -> None:
        """Compute how far this node's clock is ahead of the head's, once the head has answered.

        The head writes its time when it sees the question; this node reads the time one look later.
        """
        head_ns = None if self.clock_offset_ns else store.find(self._key("clock", self.node))
        if head_ns is not None:
            self.clock_offset_ns = time.time_ns() - int(head_ns) or 1

    def _answer_clock(self, store: SignedStore) -> None:
        for node in sorted(self._unanswered):
            if store.find(self._key("clock-ask", node)) is not None:
                store.set(self._key("clock", node), str(time.time_ns()))
                self._unanswered.discard(node)

    # Decisions from the heartbeats

    def _watch(self) -> None:
        """Name silent nodes, and record lost ones."""
        silent_s = self._heartbeats.now_s - self._store_heard_s
        self._watch_store(silent_s)
        if silent_s < deadlines.SILENT_NODE_NOTICE / 2:  # else no node can be heard
            for node, heard in self._heartbeats.heard.items():
                self._watch_node(node, heard.host)
        if self.node == 0:
            self._publish()

    def _watch_store(self, silent_s: float) -> None:
        host = self._surroundings.store_host
        if self._beats.is_gone or self._asking.is_gone:
            self.remote.lose_store(Loss(host, silence.REFUSED, silent_s))
        if self.remote.store_lost:
            return
        self.remote.store_silent = self._store_silences.is_news(silent_s, default_s=_notice_s())
        notice = self._update(
            self._store_silences,
            silence.store_named(host),
            silent_s,
            is_silent=self.remote.store_silent,
        )
        if notice is not None:
            self._surroundings.inform(notice)
        loss = self._judge(host, silence.Silence(silent_s, self._heartbeats.stepless_s))
        if loss is not None:
            self.remote.lose_store(loss)

    def _watch_node(self, node: int, host: str) -> None:
        """Print a notice when a node falls silent or is heard again; record when it is lost."""
        known = self._heartbeats.silence(node)
        if known.silent_s > _notice_s():
            self._ask_state(node)
        if node in self.remote.lost:
            return
        is_silent = self._silences_of(node).is_news(known.silent_s, default_s=_notice_s())
        self._set_silent(node, host, is_silent, silent_s=known.silent_s)
        loss = self._judge(host, known)
        if loss is not None:
            self.remote.lose(node, loss)

    def _judge(self, host: str, known: silence.Silence) -> Loss | None:
        """Return why a host is lost; None if it may come back."""
        closed_s = max(_CLOSED_S, 3 * self._tick_s)
        reason = silence.judge(
            known, node_timeout_s=self._surroundings.node_timeout_s, closed_s=closed_s
        )
        return Loss(host, reason, round(known.silent_s, 1)) if reason else None

    def _set_silent(self, node: int, host: str, is_silent: bool, *, silent_s: float) -> None:
        """Record whether a node is silent; print what is new, unless the head prints it too."""
        if is_silent:
            self.remote.silent.setdefault(node, host)
        else:
            self.remote.silent.pop(node, None)
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
        now_s, heard = self._heartbeats.now_s, self._heartbeats.heard[node]
        beat = heard.beat
        if now_s - self._asked_state_s.get((node, beat), -_ASK_STATE_S) < _ASK_STATE_S:
            return
        self._asked_state_s[node, beat] = now_s

        def ask() -> None:
            state = self._surroundings.node_state(node)
            if heard.beat == beat:  # else the node was heard in the meantime
                heard.state = state

        threading.Thread(target=ask, name="paceline-node-state", daemon=True).start()

    def _publish(self) -> None:
        """Publish which nodes are silent and which are lost. Only the head calls this."""
        losses = {node: loss.to_json() for node, loss in dict(self.remote.losses).items()}
        store_loss = self.remote.store_loss
        store = None if store_loss is None else store_loss.to_json()
        nodes = json.dumps({"silent": self.remote.silent, "lost": losses, "store_lost": store})
        if nodes != self._published:
            self._published = self._said[self._key("nodes")] = nodes
            self._beats.submit(lambda store: store.set(self._key("nodes"), nodes), is_write=True)

    def _take_over(self, nodes: Mapping[str, Any]) -> None:
        """Apply what the head has published about other nodes."""
        silent = {int(node): host for node, host in nodes["silent"].items()}
        notice_s = _notice_s() + self._tick_s
        for node in (silent.keys() | self.remote.silent.keys()) - {self.node, 0}:
            host = silent.get(node) or self.remote.silent.get(node, "")
            self._set_silent(
                node, host, node in silent, silent_s=notice_s if node in silent else 0.0
            )
        for lost, loss in nodes["lost"].items():
            self.remote.lose(int(lost), Loss(*loss))
        if nodes["store_lost"] is not None:
            self.remote.lose_store(Loss(*nodes["store_lost"]))


def _notice_s() -> float:
    """Return how long a silence lasts before a notice, in seconds."""
    return deadlines.scaled(deadlines.SILENT_NODE_NOTICE)


def _is_closed(store: SignedStore, launcher: str, *, since_s: float) -> bool:
    """Return whether a launcher's connection was closed around its last heartbeat, or later."""
    closed_s = store.raw().find(liveness.closed_key(launcher))
    return closed_s is not None and float(closed_s) > since_s - _CLOSED_S
