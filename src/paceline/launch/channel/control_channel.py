"""The control channel: heartbeats and messages of a run's launchers, through the run's store.

Every node's launcher has a thread that writes a heartbeat several times a second and checks whether
any node has failed. The head watches the heartbeats of all nodes; the others watch the head's
heartbeat and whether the store answers. A silent node is named soon (``silence_watch``). It is lost
after a long time, or when it is proven that it cannot come back (``silence``). Nothing blocks the
main path for long, and a network that was cut and came back does no harm (``connection``).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from paceline import deadlines
from paceline.launch.channel import liveness
from paceline.launch.channel.connection import Channel, Operation
from paceline.launch.channel.heartbeats import Heartbeats, write_beat
from paceline.launch.channel.remote import Remote
from paceline.launch.channel.silence_watch import CLOSED_S, SilenceWatch
from paceline.launch.channel.surroundings import Surroundings
from paceline.machine.signed_store import SignedStore

# Once a heartbeat is this late, check whether its launcher's connection is closed.
_LATE_S = 1.5
_RECONNECT_S = 0.5
# After this many heartbeats a node checks whether its messages are still in the store.
_RESTORE_EVERY = 4


class ControlChannel:
    """One node's view of the other nodes, for one attempt of a run."""

    def __init__(
        self,
        store: Any,  # of the attempt, which no other attempt shares
        *,
        node: int,
        num_nodes: int,
        surroundings: Surroundings | None = None,  # None for a channel without a launcher
    ) -> None:
        self.node = node  # rank of this node
        self.num_nodes = num_nodes  # number of nodes
        self.remote = Remote()  # what is known about the other nodes
        # how far this node's clock is ahead of the head's; 0 until it is known
        self.clock_offset_ns = 0
        self._surroundings = surroundings or Surroundings()
        self._launcher = liveness.name_of(socket.gethostname(), os.getpid())
        store = SignedStore.of(store)
        self._is_signed = store.signing.is_on
        self._messages: dict[str, str] = {}  # what this node has written, by key
        mark = self._key("beat", node)
        store.set(mark, write_beat(0, self._launcher, 0))
        self._beats = Channel(store, mark=mark)
        self._requests = Channel(store, mark=mark)  # what callers read and write
        self._tick_s = min(2.0, max(0.25, num_nodes / 400))
        self._watched = range(1, num_nodes) if node == 0 else range(1)
        self._heartbeats = Heartbeats(self._watched, tick_s=self._tick_s)
        self._silence_watch = SilenceWatch(
            self.remote,
            self._heartbeats,
            node=node,
            tick_s=self._tick_s,
            surroundings=self._surroundings,
        )
        self._store_answer_s = 0.0  # when the store last answered, on the heartbeats' clock
        self._answered = 0  # number of heartbeats that the store has accepted
        self._count = 0
        self._steps = 0
        self._beat: Operation | None = None
        self._published = ""
        self._updates = itertools.count(1)  # of all kinds; several threads tell
        self._news: dict[str, bytes] = {}  # the last change that ``hear`` has returned, by kind
        self._without_clock = set(range(1, num_nodes)) if node == 0 else set()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._live, name="paceline-control-channel", daemon=True
        )
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
            if self._is_over(deadline, give_up):
                return None
            time.sleep(0.05)
        return json.loads(content)

    def post(self, kind: str, content: Any) -> None:
        """Publish this node's value of a kind, such as how its ranks ended."""
        self.announce(kind, self.node, content)

    def tell(self, kind: str, content: Any) -> None:
        """Publish a new value of a kind over the old one; the head's next ``hear`` returns it."""
        self.post(kind, content)
        # Any change of this value is news. It is not a counter: counters cannot be signed.
        self._write(self._key(f"{kind}-news"), f"{self.node} {next(self._updates)}")

    def hear(self, kind: str) -> dict[int, Any]:
        """Return the values of all nodes by node rank, if any has changed since the last call.

        Empty if nothing has changed, or if some node has not published yet. This does not wait, and
        sends one request if nothing is new.
        """

        def read(store: SignedStore) -> list[bytes]:
            news = store.find(self._key(f"{kind}-news"))
            if news is None or news == self._news.get(kind):
                return []
            values = store.find_by_node(self._key(kind), range(self.num_nodes))
            if len(values) < self.num_nodes:
                return []
            self._news[kind] = news
            return list(values.values())

        return dict(enumerate(map(json.loads, self._requests.ask(read) or [])))

    def announce(self, kind: str, number: int, content: Any) -> None:
        """Publish a value for all nodes, the ``number``-th of a kind."""
        self._write(self._key(kind, number), json.dumps(content))

    def announced(self, kind: str, number: int) -> Any:
        """Return the ``number``-th value of a kind; None if it is not published yet."""
        content = self._get(self._key(kind, number))
        return None if content is None else json.loads(content)

    def collect(
        self,
        kind: str,
        *,
        until_s: float,  # the maximum wait; nodes that are silent until then are left out
        give_up: Callable[[], bool] = lambda: False,  # called several times a second
    ) -> dict[int, Any]:
        """Return the nodes' values by node rank; wait for all nodes that are not lost."""
        values: dict[int, Any] = {}
        nodes = set(range(self.num_nodes))
        deadline = time.monotonic() + until_s
        while True:
            for node in nodes - set(values):
                content = self._get(self._key(kind, node))
                if content is not None:
                    values[node] = json.loads(content)
            if not nodes - set(values) - self.remote.lost:
                return values
            if self._is_over(deadline, give_up):
                return values
            time.sleep(0.05)

    def _is_over(self, deadline: float, give_up: Callable[[], bool]) -> bool:
        """Return whether a wait for other nodes is over."""
        return self.remote.store_lost or time.monotonic() > deadline or give_up()

    def exchange(
        self,
        content: Any,
        *,
        until_s: float,  # the maximum wait for the others
        linger: bool,  # wait until the others have read: the store ends with this process
        give_up: Callable[[], bool] = lambda: False,  # called several times a second
    ) -> dict[int, Any]:
        """Publish this node's account and return all accounts, as the nodes' last exchange."""
        self.post("account", content)
        accounts = self.collect("account", until_s=until_s, give_up=give_up)
        self.post("bye", True)
        if linger:
            self.collect("bye", until_s=until_s)
        self.close()
        return accounts

    def all_have(self, kind: str, *, but_head: bool = False) -> bool:
        """Return whether every node has published a value of a kind; sends a single request."""
        keys = [self._key(kind, node) for node in range(but_head, self.num_nodes)]

        def check(store: SignedStore) -> bool:
            return store.check(keys) and len(store.find_all(keys)) == len(keys)

        return bool(self._requests.ask(check))

    def answers(self, *, give_up: Callable[[], bool]) -> bool:
        """Return whether the store answers this node from now on; wait until it does or is lost."""
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
        self._requests.close()

    def _key(self, kind: str, node: int | None = None) -> str:
        return f"paceline/{kind}" if node is None else f"paceline/{kind}/{node}"

    def _get(self, key: str) -> bytes | None:
        content: bytes | None = self._requests.ask(lambda store: store.find(key))
        return content

    def _write(self, key: str, text: str) -> None:
        """Write a value that must not get lost."""
        self._messages[key] = text
        self._requests.write(lambda store: store.set(key, text))

    def _live(self) -> None:
        # While the head's clock is awaited, look more often: the interval limits the error.
        is_asking_clock = self.node != 0
        if is_asking_clock:
            self._beats.submit(
                lambda store: store.set(self._key("clock-ask", self.node), "1"), is_write=True
            )
        while not self._stop.wait(self._tick_s / 10 if is_asking_clock else self._tick_s):
            self._heartbeats.advance()
            self._count_steps()
            if self._beat is None or self._beat.done.is_set():
                self._beat = self._beats.submit(self._beat_and_look, is_write=False)
            is_asking_clock = is_asking_clock and not self.clock_offset_ns
            self._watch()

    def _reconnect(self) -> None:
        """Open new connections if the store has not answered for long; this may take seconds."""
        while not self._stop.wait(_RECONNECT_S):
            self._beats.reconnect()
            self._requests.reconnect()

    def _count_steps(self) -> None:
        steps = self._surroundings.count_steps()
        if steps != self._steps:
            self._steps = steps
            self._heartbeats.step()

    def _watch(self) -> None:
        """Name silent nodes, and record lost ones."""
        silent_s = self._heartbeats.now_s - self._store_answer_s
        is_gone = self._beats.is_gone or self._requests.is_gone
        self._silence_watch.watch_store(silent_s, is_gone=is_gone)
        if silent_s < deadlines.SILENT_NODE_NOTICE / 2:  # else no heartbeat can be read
            self._silence_watch.watch_nodes()
        if self.node == 0:
            self._publish()

    def _publish(self) -> None:
        """Publish which nodes are silent and which are lost. Only the head calls this."""
        key, nodes = self._key("nodes"), self._silence_watch.to_json()
        if nodes != self._published:
            self._published = self._messages[key] = nodes
            self._beats.submit(lambda store: store.set(key, nodes), is_write=True)

    # In the channel's thread, with the store

    def _beat_and_look(self, store: SignedStore) -> bool:
        self._count += 1
        store.set(
            self._key("beat", self.node), write_beat(self._count, self._launcher, self._steps)
        )
        self._look(store)
        if self._is_signed and self._count % _RESTORE_EVERY == 0:
            self._restore_messages(store)
        self._store_answer_s = self._heartbeats.now_s
        self._answered += 1
        return True

    def _restore_messages(self, store: SignedStore) -> None:
        """Restore messages that another program has overwritten.

        While the other program keeps writing, the two take turns.
        """
        messages = dict(self._messages)
        for key in messages.keys() - store.find_all(messages).keys():
            store.set(key, messages[key])

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
            self._silence_watch.adopt(json.loads(nodes))

    def _read_beats(self, store: SignedStore) -> None:
        """Record the heartbeats of watched nodes, and which late nodes lost their connection."""
        for node, beat in store.find_by_node(self._key("beat"), self._watched).items():
            self._heartbeats.record(node, beat)
        late_s = max(_LATE_S, 2 * self._tick_s)
        for node, record in self._heartbeats.records.items():
            if record.launcher and self._heartbeats.silence(node).silent_s > late_s:
                record.is_closed = _is_closed(store, record.launcher, since_s=record.wall_s)

    def _read_clock(self, store: SignedStore) -> None:
        """Compute how far this node's clock is ahead of the head's, once the head has answered.

        The head writes its time when it sees the question; this node reads the time one look later.
        """
        head_ns = None if self.clock_offset_ns else store.find(self._key("clock", self.node))
        if head_ns is not None:
            self.clock_offset_ns = time.time_ns() - int(head_ns) or 1

    def _answer_clock(self, store: SignedStore) -> None:
        for node in sorted(self._without_clock):
            if store.find(self._key("clock-ask", node)) is not None:
                store.set(self._key("clock", node), str(time.time_ns()))
                self._without_clock.discard(node)


def _is_closed(store: SignedStore, launcher: str, *, since_s: float) -> bool:
    """Return whether a launcher's connection was closed around its last heartbeat, or later."""
    closed_s = store.raw().find(liveness.closed_key(launcher))
    return closed_s is not None and float(closed_s) > since_s - CLOSED_S
