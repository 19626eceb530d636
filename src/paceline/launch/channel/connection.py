"""A connection to the run's store that survives a network cut: what is written is kept until the store has it.

torch's client blocks for as long as TCP tries, which after a cut of a minute is almost another minute, and a client
whose connection was reset stays unusable. So every operation is carried out by a thread of the channel, nobody waits
for it longer than a moment, and when the store has been silent for long a second connection is made beside the first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from paceline.launch.channel.connection_probe import knock

# How long a caller waits for the store at most. A store that answers takes milliseconds.
_WAIT_S = 2.0
# A store that has not answered for so long may be behind a connection that does not recover automatically.
_RENEW_S = 3.0
# How long a new connection may take: a stopped process accepts it and does not answer.
_CONNECT_S = 15.0
_KEY_TIMEOUT = timedelta(seconds=30)


@dataclass(eq=False)
class Operation:
    """Something to do with the store.

    Attributes:
        action: Gets the store's client, and returns the result.
        is_write: It is kept until it has been carried out.
        done: It has been carried out, or it is a read whose connection has failed.
        result: What it returned, None if it was not carried out.
        begun_s: When the store was asked.
    """

    action: Callable[[Any], Any]
    is_write: bool
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    begun_s: float = 0.0


class Channel:
    """Carries out operations on a store, one after the other.

    Args:
        store: The store, or a prefix of it; the channel makes its own clients.
        mark: Key that this store has and a store of another run does not, once it was written.

    Attributes:
        is_gone: It is proven that the store is gone: its host answers, and nothing or another store listens there.
    """

    def __init__(self, store: Any, *, mark: str) -> None:
        self._mark = mark
        self._original = store
        self._place = place_of(store)
        self._changed = threading.Condition()
        self._waiting: deque[Operation] = deque()
        self._current: Operation | None = None
        self._is_broken = self._is_closed = False
        self._generation = 0
        self._refusals = 0
        self._coming: queue.SimpleQueue[Any] | None = None  # where a new connection will arrive
        self._asked_s = 0.0  # since when it is awaited
        self.is_gone = False
        client = store.clone()
        client.set_timeout(_KEY_TIMEOUT)
        self._begin(client)

    @property
    def is_silent(self) -> bool:
        """Whether the store owes an answer for longer than a caller would wait."""
        current = self._current
        return self._is_broken or (current is not None and time.monotonic() - current.begun_s > _WAIT_S)

    def submit(self, action: Callable[[Any], Any], *, is_write: bool) -> Operation:
        """Queue an operation and return at once."""
        operation = Operation(action, is_write)
        with self._changed:
            if not self._is_closed:
                self._waiting.append(operation)
                self._changed.notify()
        return operation

    def write(self, action: Callable[[Any], Any]) -> None:
        """Carry out an operation that must not get lost; it may still be on its way when this returns."""
        if not self._is_closed and not self.is_gone:
            self._await(self.submit(action, is_write=True))

    def ask(self, action: Callable[[Any], Any]) -> Any:
        """Return what an operation returns; None if the store does not answer now."""
        if self._is_closed or self.is_gone or self.is_silent:
            return None
        operation = self.submit(action, is_write=False)
        if self._await(operation):
            return operation.result
        with self._changed:
            if operation in self._waiting:
                self._waiting.remove(operation)
        return None

    def _await(self, operation: Operation) -> bool:
        """Wait until an operation has been carried out, the store is silent, or the channel is closed."""
        deadline = time.monotonic() + 2 * _WAIT_S
        while not operation.done.wait(0.2):
            if self._is_closed or self.is_gone or self.is_silent or time.monotonic() > deadline:
                return operation.done.is_set()
        return True

    def reconnect(self) -> None:
        """Make a new connection if the old one has been silent for long. Blocks for seconds; called by one thread."""
        if self._is_closed or self.is_gone:
            return
        current = self._current
        is_late = current is not None and time.monotonic() - current.begun_s > _RENEW_S
        if not self._is_broken and not is_late:
            self._refusals, self._coming = 0, None
            return
        self._take_new_connection()
        if not self._is_broken and self._current is not current:
            return
        attempt = knock(*self._place)
        # One refusal may come from a full table of connections, two in a row do not.
        self._refusals = self._refusals + 1 if attempt.kind == "refused" else 0
        if self._refusals > 1:
            self.is_gone = True
        if attempt.kind == "open" and (self._coming is None or time.monotonic() - self._asked_s > _CONNECT_S):
            self._ask_for_connection()

    def close(self) -> None:
        """Stop after the operation that is being carried out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait until the channel's thread has ended after ``close``; False if it has not in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _begin(self, client: Any) -> None:
        arguments = (self._generation, client)
        self._thread = threading.Thread(target=self._work, args=arguments, name="paceline-channel", daemon=True)
        self._thread.start()

    def _work(self, generation: int, client: Any) -> None:
        """Carry out operations until a newer connection has taken over, or the channel is closed."""
        while (operation := self._next(generation)) is not None:
            try:
                operation.result = operation.action(client)
            except DistStoreError:
                operation.result = None  # a key that was there is not any more: nothing is wrong with the connection
            except RuntimeError:  # torch raises it for a connection that is gone
                self._give_back(generation, operation)
                return
            operation.done.set()

    def _next(self, generation: int) -> Operation | None:
        with self._changed:
            if generation == self._generation:
                self._current = None
            while not self._waiting and not self._is_closed and generation == self._generation:
                self._changed.wait()
            if not self._waiting or generation != self._generation:
                return None
            operation = self._waiting.popleft()
            operation.begun_s = time.monotonic()
            self._current = operation
            return operation

    def _give_back(self, generation: int, operation: Operation) -> None:
        """Put a write back that the connection has failed in, for the next connection."""
        with self._changed:
            if generation != self._generation:
                return
            self._is_broken, self._current = True, None
            self._repeat_or_drop(operation)

    def _repeat_or_drop(self, operation: Operation) -> None:
        """Queue a write again; release the thread that waits for a read."""
        if operation.is_write:
            self._waiting.appendleft(operation)
        else:
            operation.done.set()

    def _ask_for_connection(self) -> None:
        """Connect in another thread: a stopped process accepts, and answers when it continues."""
        self._asked_s = time.monotonic()
        coming: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._coming = coming

        def connect() -> None:
            try:
                client = self._original.clone()
                client.set_timeout(_KEY_TIMEOUT)
                coming.put((client, client.check([self._mark])))
            except RuntimeError:
                return  # the network went again; there will be another try

        threading.Thread(target=connect, name="paceline-connect", daemon=True).start()

    def _take_new_connection(self) -> None:
        """Let the new connection take over, if it has come."""
        if self._coming is None or self._coming.empty():
            return
        client, is_ours = self._coming.get()
        self._coming = None
        if not is_ours:
            self.is_gone = True
            return
        with self._changed:
            self._generation += 1
            self._is_broken = False
            if self._current is not None:
                self._repeat_or_drop(self._current)
            self._current = None
            self._changed.notify_all()
        self._begin(client)


def place_of(store: Any) -> tuple[str, int]:
    """Return host and port of a store, also of one behind prefixes."""
    raw = raw_store(store)
    return str(raw.host), int(raw.port)


def raw_store(store: Any) -> Any:
    """Return the store behind prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store
