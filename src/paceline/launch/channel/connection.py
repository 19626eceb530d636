"""A connection to the run's store that survives a network cut and keeps writes until they arrive.

torch's client blocks for as long as TCP retries: after a cut of one minute, that is almost another
minute. A client whose connection was reset stays unusable. So a thread of the channel carries out
every operation, no caller waits longer than a moment, and a second connection is opened if the
store has been silent for long.
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

from paceline.launch.channel.connection_probe import probe_port

# How long a caller waits for the store at most. A working store answers in milliseconds.
_WAIT_S = 2.0
# A store that is silent this long may be behind a connection that does not recover automatically.
_RENEW_S = 3.0
# How long a new connection may take: a stopped process accepts the connection and does not answer.
_CONNECT_S = 15.0
_KEY_TIMEOUT = timedelta(seconds=30)


@dataclass(eq=False)
class Operation:
    """One operation on the store."""

    action: Callable[[Any], Any]  # takes the store's client and returns the result
    is_write: bool  # whether the operation is kept until it has been carried out
    # set when the operation has been carried out, or when the connection of a read failed
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None  # the result of ``action``; None if it was not carried out
    begun_s: float = 0.0  # when the operation was sent to the store


class Channel:
    """Carries out operations on a store, one after the other."""

    def __init__(
        self,
        store: Any,  # or a prefix of it; the channel opens its own clients
        *,
        mark: str,  # exists in this store once it was written, and never in another run's
    ) -> None:
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
        self._asked_s = 0.0  # when the new connection was requested
        # whether the store is proven to be gone: its host answers, but the port is closed or
        # another store listens there
        self.is_gone = False
        client = store.clone()
        client.set_timeout(_KEY_TIMEOUT)
        self._begin(client)

    @property
    def is_silent(self) -> bool:
        """Whether an answer of the store is overdue for longer than a caller would wait."""
        current = self._current  # the channel's thread may reset it
        is_late = current is not None and time.monotonic() - current.begun_s > _WAIT_S
        return self._is_broken or is_late

    @property
    def _may_answer(self) -> bool:
        """Whether the store may answer a caller within a moment."""
        return not (self._is_closed or self.is_gone or self.is_silent)

    def submit(self, action: Callable[[Any], Any], *, is_write: bool) -> Operation:
        """Queue an operation and return at once."""
        operation = Operation(action, is_write)
        with self._changed:
            if not self._is_closed:
                self._waiting.append(operation)
                self._changed.notify()
        return operation

    def write(self, action: Callable[[Any], Any]) -> None:
        """Carry out an operation that must not get lost; it may still be in progress on return."""
        if not self._is_closed and not self.is_gone:
            self._await(self.submit(action, is_write=True))

    def ask(self, action: Callable[[Any], Any]) -> Any:
        """Return the result of an operation; None if the store does not answer now."""
        if not self._may_answer:
            return None
        operation = self.submit(action, is_write=False)
        if self._await(operation):
            return operation.result
        with self._changed:
            if operation in self._waiting:
                self._waiting.remove(operation)
        return None

    def _await(self, operation: Operation) -> bool:
        """Wait until an operation has been carried out; False if the store does not answer."""
        deadline = time.monotonic() + 2 * _WAIT_S
        while not operation.done.wait(0.2):
            if not self._may_answer or time.monotonic() > deadline:
                return operation.done.is_set()
        return True

    def reconnect(self) -> None:
        """Open a new connection if the old one has been silent for long.

        This blocks for seconds. Only one thread may call it.
        """
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
        probe = probe_port(*self._place)
        # A full table of connections can cause one refusal, but not two in a row.
        self._refusals = self._refusals + 1 if probe.kind == "refused" else 0
        if self._refusals > 1:
            self.is_gone = True
        is_pending = self._coming is not None and time.monotonic() - self._asked_s <= _CONNECT_S
        if probe.kind == "open" and not is_pending:
            self._ask_for_connection()

    def close(self) -> None:
        """Stop after the current operation."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait until the channel's thread has ended after ``close``; False after the timeout."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _begin(self, client: Any) -> None:
        arguments = (self._generation, client)
        self._thread = threading.Thread(
            target=self._work, args=arguments, name="paceline-channel", daemon=True
        )
        self._thread.start()

    def _work(self, generation: int, client: Any) -> None:
        """Carry out operations until a newer connection takes over or the channel is closed."""
        while (operation := self._next(generation)) is not None:
            try:
                operation.result = operation.action(client)
            except DistStoreError:
                operation.result = None  # a key was removed; the connection is fine
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
        """Put back a write that failed with its connection, for the next connection."""
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
                return  # the network was cut again; another try follows

        threading.Thread(target=connect, name="paceline-connect", daemon=True).start()

    def _take_new_connection(self) -> None:
        """Switch to the new connection, if it is open."""
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
    """Return host and port of a store; prefixes around the store are skipped."""
    raw = raw_store(store)
    return str(raw.host), int(raw.port)


def raw_store(store: Any) -> Any:
    """Return the store inside its prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store
