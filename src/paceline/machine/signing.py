"""Sign what launchers and ranks write for each other: only processes with the secret are believed.

``sign`` and ``verify`` are pure. A signature binds the value to its key, the run's token, its
sender and a number that each sender counts up. So nobody can move a message to another key, run or
attempt, and an older message is distinguished from a newer one.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_MARK = b"paceline-signed"
_STAYS_S = 0.2


@dataclass(frozen=True)
class Message:
    """A signed message."""

    sender: str  # a random id of the signing launcher
    number: int  # counts the messages of this sender
    value: bytes  # the content


def sign(secret: bytes, token: str, key: str, message: Message) -> bytes:
    """Return a message as it is written under a key: a line with the signature, and the value."""
    return b"%s %s %d %s\n%s" % (
        _MARK,
        _digest(secret, token, key, message).encode(),
        message.number,
        message.sender.encode(),
        message.value,
    )


def verify(secret: bytes, token: str, key: str, content: bytes) -> Message | None:
    """Return the message under a key; None without a valid signature for that key."""
    line, value = _split(content)
    try:
        digest, number, sender = line.decode("ascii").split(" ")
        message = Message(sender, int(number), value)
    except ValueError:
        return None
    return message if hmac.compare_digest(digest, _digest(secret, token, key, message)) else None


def unsigned(content: bytes) -> bytes:
    """Return the value of a message; its signature, if any, is not checked."""
    line, value = _split(content)
    return value if line else content


def _split(content: bytes) -> tuple[bytes, bytes]:
    """Return the signature line without its mark, empty if there is none, and the value."""
    if not content.startswith(_MARK + b" "):
        return b"", content
    line, _, value = content.partition(b"\n")
    return line[len(_MARK) + 1 :], value


def _digest(secret: bytes, token: str, key: str, message: Message) -> str:
    # Each part follows its length, so that the end of a field cannot pass as the next one's start.
    parts = (
        token.encode(),
        key.encode(),
        message.sender.encode(),
        str(message.number).encode(),
        message.value,
    )
    content = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return hmac.new(secret, content, hashlib.sha256).hexdigest()


def derive(secret: bytes, purpose: str) -> str:
    """Return a secret for one purpose, from which the other one cannot be computed."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).hexdigest()


class Signing:
    """How this launcher signs what it writes, and which messages it accepts."""

    def __init__(
        self,
        # of the run; empty for one without, in which all messages are accepted
        secret: bytes = b"",
        *,
        token: str = "",
        # called once for each kind of key under which a message was rejected
        on_ignored: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._secret = secret
        self._token = token
        self._on_ignored = on_ignored
        self._sender = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._newest: dict[tuple[str, str], int] = {}  # by key and sender
        self._old_since_s: dict[tuple[str, str, int], float] = {}
        self.ignored: set[str] = set()  # kinds of messages that nobody of the run has signed
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether messages are signed, and only signed ones accepted."""
        return bool(self._secret)

    def derived(self, purpose: str) -> str:
        """Return a secret for one purpose, the same on all nodes; empty for a run without one."""
        return derive(self._secret, purpose) if self._secret else ""

    def drop(self) -> None:
        """Stop signing and accept all messages, because some node does not have the secret."""
        self._secret = b""

    def close(self, key: str, value: bytes) -> bytes:
        """Return a value in the form in which it is written under a key."""
        if not self._secret:
            return value
        return sign(
            self._secret, self._token, key, Message(self._sender, next(self._numbers), value)
        )

    def open(self, key: str, content: bytes) -> bytes | None:
        """Return the value written under a key; None if its signature is invalid."""
        if not self._secret:
            return unsigned(content)
        message = verify(self._secret, self._token, key, content)
        if message is None:
            self._report(key)
            return None
        return None if self._is_old(key, message) else message.value

    def has_signed(self, key: str, content: bytes) -> bool:
        """Return whether a process with the secret has signed this content."""
        return bool(self._secret) and verify(self._secret, self._token, key, content) is not None

    def _is_old(self, key: str, message: Message) -> bool:
        """Return whether a newer message of this sender was seen under the key.

        It is reported if it stays: of two threads, the first one to read may be the last to check.
        """
        place, now_s = (key, message.sender), time.monotonic()
        with self._lock:
            newest = self._newest.get(place, 0)
            self._newest[place] = max(newest, message.number)
            if message.number >= newest:
                return False
            since_s = self._old_since_s.setdefault((*place, message.number), now_s)
        if now_s - since_s > _STAYS_S:
            self._report(key)
        return True

    def _report(self, key: str) -> None:
        kind = key.rpartition("|")[2].rstrip("0123456789").rstrip("/")
        with self._lock:
            is_new = kind not in self.ignored
            self.ignored.add(kind)
        if is_new:
            self._on_ignored(kind)
