"""The board: what the launchers of a run tell each other through its store.

Every node's launcher has a thread that, several times a second, says that it lives and looks whether any
node has failed. The head also looks at every node's sign of life, and declares those lost that have been
silent for too long. Nothing blocks for long on the main path: the thread has a store client of its own.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

# A node that has been silent for so long is lost. With a tick and the store's own delays this keeps the
# promise that the others know within 15 s.
LOST_AFTER_S = 10.0


@dataclass
class Remote:
    """What is known of the other nodes.

    Attributes:
        failed: Some node's ranks have failed in this attempt.
        look: Number of the last look that some node has called for, at where all ranks stand.
        hurry: Somebody has insisted: what is left of the ranks is ended at once.
        stop: Signal that some node's launcher got, 0 for none: all end as that one does.
        lost: Node ranks that have gone silent, -1 for the head's store.
        hosts: Host of each that has gone silent, where it had been heard before.
    """

    failed: bool = False
    look: int = 0
    hurry: bool = False
    stop: int = 0
    lost: set[int] = field(default_factory=set)
    hosts: dict[int, str] = field(default_factory=dict)


class _Question:
    """Something that is asked of the store.

    Attributes:
        done: It was answered, or the store is gone.
        failed: The store is gone.
    """

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action
        self.done = threading.Event()
        self.failed = False


def _answer(questions: queue.SimpleQueue[_Question | None]) -> None:
    """Carry out questions one after the other, until there is None."""
    while (question := questions.get()) is not None:
        try:
            question.action()
        except RuntimeError:  # torch raises it for a store that is gone
            question.failed = True
        question.done.set()


class Board:
    """One node's view of the others, for one attempt of a run.

    Args:
        store: The store of the attempt, which no other attempt shares.
        node: Rank of this node.
        num_nodes: Number of nodes.
    """

    def __init__(self, store: Any, *, node: int, num_nodes: int) -> None:
        self.node = node
        self.num_nodes = num_nodes
        self.remote = Remote()
        self.clock_offset_ns = 0
        self._store = store.clone()
        self._store.set_timeout(timedelta(seconds=30))
        self._asking = store.clone()  # for what callers want to know
        self._asking.set_timeout(timedelta(seconds=30))
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        threading.Thread(target=_answer, args=(self._questions,), name="paceline-questions", daemon=True).start()
        self._tick_s = min(2.0, max(0.25, num_nodes / 400))
        self._heard = time.monotonic()
        self._news: dict[str, int] = {}
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._unanswered = set(range(1, num_nodes)) if node == 0 else set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="paceline-board", daemon=True)
        self._thread.start()

    def fail(self) -> None:
        """Tell all nodes that this one has failed: they stop their ranks."""
        self._try(lambda: self._asking.set(self._key("failed"), str(self.node)))

    def stop(self, signum: int) -> None:
        """Tell all nodes that this one was told to end by a signal."""
        self._try(lambda: self._asking.set(self._key("stop"), str(int(signum))))

    def hurry(self) -> None:
        """Tell all nodes to end at once what is left of their ranks."""
        self._try(lambda: self._asking.set(self._key("hurry"), "1"))

    def call_look(self, number: int) -> None:
        """Let all nodes look where their ranks stand; several may call for the same look."""
        if number > self.remote.look:
            self.remote.look = number
            self._try(lambda: self._asking.set(self._key("look"), str(number)))

    def await_head(self, kind: str, *, until_s: float, give_up: Callable[[], bool]) -> Any:
        """Return what the head publishes under a kind, None if it has not after ``until_s``, or ``give_up()``."""
        deadline = time.monotonic() + until_s
        while (content := self._get(self._key(kind, 0))) is None:
            if -1 in self.remote.lost or time.monotonic() > deadline or give_up():
                return None
            time.sleep(0.05)
        return json.loads(content)

    def post(self, kind: str, content: Any) -> None:
        """Publish this node's word of a kind, such as how its ranks ended."""
        self.announce(kind, self.node, content)

    def tell(self, kind: str, content: Any) -> None:
        """Publish a new word of a kind, over the one before, so that the head's next ``hear`` returns it."""
        self.post(kind, content)
        self._try(lambda: self._asking.add(self._key(f"{kind}-news"), 1))

    def hear(self, kind: str) -> dict[int, Any]:
        """Return what all nodes tell, by node rank, if there is news; empty if not, or if some never told anything.

        It does not wait, and asks one question where there is nothing new.
        """
        found: dict[int, Any] = {}

        def ask() -> None:
            news = self._asking.add(self._key(f"{kind}-news"), 0)
            keys = [self._key(kind, node) for node in range(self.num_nodes)]
            if news != self._news.get(kind) and self._asking.check(keys):
                found.update(enumerate(map(json.loads, self._asking.multi_get(keys))))
                self._news[kind] = news

        self._try(ask)
        return found

    def announce(self, kind: str, number: int, content: Any) -> None:
        """Publish a word for all nodes, the ``number``-th of a kind."""
        self._try(lambda: self._asking.set(self._key(kind, number), json.dumps(content)))

    def announced(self, kind: str, number: int) -> Any:
        """Return the ``number``-th word of a kind, None if it was not said yet."""
        content = self._get(self._key(kind, number))
        return None if content is None else json.loads(content)

    def collect(self, kind: str, *, until_s: float, give_up: Callable[[], bool] = lambda: False) -> dict[int, Any]:
        """Return what nodes have published, by node rank; waits until all have that are not lost.

        Args:
            kind: As given to ``post``.
            until_s: How long to wait at most; nodes that are silent until then are left out.
            give_up: Returns whether to wait no longer; called several times a second.
        """
        found: dict[int, Any] = {}
        deadline = time.monotonic() + until_s
        while True:
            for node in set(range(self.num_nodes)) - set(found):
                content = self._get(self._key(kind, node))
                if content is not None:
                    found[node] = json.loads(content)
            missing = set(range(self.num_nodes)) - set(found) - self.remote.lost
            if not missing or -1 in self.remote.lost or time.monotonic() > deadline or give_up():
                return found
            time.sleep(0.05)

    def exchange(
        self, content: Any, *, until_s: float, linger: bool, give_up: Callable[[], bool] = lambda: False
    ) -> dict[int, Any]:
        """Publish this node's account and return everybody's; the last thing that nodes do together.

        Args:
            content: This node's account.
            until_s: How long to wait for the others' at most.
            linger: Wait until the others have read, because the store goes with this process.
            give_up: Returns whether to wait no longer; called several times a second.
        """
        self.post("account", content)
        found = self.collect("account", until_s=until_s, give_up=give_up)
        self.post("bye", True)
        if linger:
            self.collect("bye", until_s=until_s)
        self.close()
        return found

    def all_have(self, kind: str, *, but_head: bool = False) -> bool:
        """Return whether every node has published something of a kind: one question, however many they are.

        Args:
            kind: As given to ``post``.
            but_head: Leave the head out.
        """
        found = False

        def ask() -> None:
            nonlocal found
            found = bool(self._asking.check([self._key(kind, node) for node in range(but_head, self.num_nodes)]))

        self._try(ask)
        return found

    @property
    def silent_s(self) -> float:
        """Seconds since the store last answered this node."""
        return time.monotonic() - self._heard

    def answers(self, *, within_s: float) -> bool:
        """Return whether the store answers this node from now on; waits for its next sign of life."""
        asked = time.monotonic()
        while self._heard < asked:
            if -1 in self.remote.lost or time.monotonic() - asked > within_s:
                self.remote.lost.add(-1)
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Stop to say that this node lives, and to talk to the others."""
        self._stop.set()
        self._questions.put(None)

    def _key(self, kind: str, node: int | None = None) -> str:
        return f"paceline/{kind}" if node is None else f"paceline/{kind}/{node}"

    def _get(self, key: str) -> bytes | None:
        found: bytes | None = None

        def ask() -> None:
            nonlocal found
            if self._asking.check([key]):
                found = bytes(self._asking.get(key))

        self._try(ask)
        return found

    def _try(self, action: Callable[[], object]) -> None:
        """Talk to the store; once it has not answered, never again.

        In a thread of its own, because a host that has gone silent does not even refuse: the caller would wait for
        as long as TCP tries.
        """
        if -1 in self.remote.lost or self._stop.is_set():
            return
        question = _Question(action)
        self._questions.put(question)
        while not question.done.wait(0.2):
            if self.silent_s > LOST_AFTER_S:
                break
        if question.failed or not question.done.is_set():
            self.remote.lost.add(-1)

    def _live(self) -> None:
        try:
            asking = self.node != 0
            if asking:
                self._store.set(self._key("clock-ask", self.node), "1")
            count = 0
            # While the head's answer about the clock is awaited, look more often: the look decides its error.
            while not self._stop.wait(self._tick_s / 10 if asking else self._tick_s):
                asking = asking and not self._hear_clock()
                count += 1
                self._store.set(self._key("beat", self.node), f"{count} {socket.gethostname()}")
                self._heard = time.monotonic()
                self._look()
        except RuntimeError:  # torch raises it for a store that is gone
            if not self._stop.is_set():
                self.remote.lost.add(-1)

    def _look(self) -> None:
        if self._store.check([self._key("stop")]):
            self.remote.stop = int(self._store.get(self._key("stop")))
        if self._store.check([self._key("failed")]):
            self.remote.failed = True
        if self.remote.stop and self._store.check([self._key("hurry")]):
            self.remote.hurry = True
        if self._store.check([self._key("look")]):
            self.remote.look = max(self.remote.look, int(self._store.get(self._key("look"))))
        if self.node == 0:
            self._answer_clock()
            self._watch_beats()
        elif self._store.check([self._key("lost")]):
            self._hear_lost(dict(json.loads(self._store.get(self._key("lost")))))

    def _watch_beats(self) -> None:
        """The head compares each node's beat with the one that it saw before, on its own clock."""
        now = time.monotonic()
        for node in range(1, self.num_nodes):
            key = self._key("beat", node)
            beat = bytes(self._store.get(key)) if self._store.check([key]) else b""
            seen, since = self._beats.get(node, (b"", now))
            self._beats[node] = (beat, now if beat != seen else since)
            if now - self._beats[node][1] > LOST_AFTER_S and node not in self.remote.lost:
                self._hear_lost({node: beat.decode().partition(" ")[2]})
                told = [(each, self.remote.hosts[each]) for each in sorted(self.remote.hosts)]
                self._store.set(self._key("lost"), json.dumps(told))

    def _hear_lost(self, hosts: Mapping[int, str]) -> None:
        self.remote.hosts.update(hosts)
        self.remote.lost |= set(hosts)

    def _hear_clock(self) -> bool:
        """Learn by how much this node's clock is ahead of the head's; False if the head has not answered yet.

        The head writes its time when it comes to the question, and this node has seen it a look later.
        """
        key = self._key("clock", self.node)
        if not self._store.check([key]):
            return False
        self.clock_offset_ns = time.time_ns() - int(self._store.get(key))
        return True

    def _answer_clock(self) -> None:
        for node in sorted(self._unanswered):
            if self._store.check([self._key("clock-ask", node)]):
                self._store.set(self._key("clock", node), str(time.time_ns()))
                self._unanswered.discard(node)
