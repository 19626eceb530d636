"""The store of a run as launchers use it: what they write is signed, and what they read was signed, or is not there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError

from paceline.launch.channel.signing import Signing, unsigned

_LOOK_S = 0.02
_TIMEOUT = timedelta(seconds=30)


class SignedStore:
    """A store, or a prefix of one.

    A message that is not believed counts as one that is not there: whoever wrote over it, its writer may write again.

    Args:
        store: The store.
        signing: How messages are signed; without it none is, and all are believed.
        scope: Tells stores with the same keys apart, such as those of two attempts: no message holds in both.
    """

    def __init__(self, store: Any, signing: Signing | None = None, *, scope: str = "") -> None:
        self.underlying_store = store
        self.signing = signing or Signing()
        self._scope = scope

    @classmethod
    def of(cls, store: Any) -> SignedStore:
        """Return a store as it is, if it is one of these, or else without signatures."""
        return store if isinstance(store, cls) else cls(store)

    def _key(self, key: str) -> str:
        return f"{self._scope}|{key}"

    def closed(self, key: str, value: str | bytes) -> bytes:
        """Return a value as it is written under a key."""
        return self.signing.close(self._key(key), value.encode() if isinstance(value, str) else value)

    # What is written

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self.underlying_store.set(key, self.closed(key, value))

    def multi_set(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Write several values."""
        closed = [self.closed(key, value) for key, value in zip(keys, values, strict=True)]
        self.underlying_store.multi_set(keys, closed)

    def claim(self, key: str, value: str) -> bytes:
        """Write a value where none is yet; return the one that is there then."""
        mine = self.closed(key, value)
        there = bytes(self.underlying_store.compare_set(key, "", mine))
        found = value.encode() if there == mine else self.signing.open(self._key(key), there)
        if found is not None:
            return found
        self.underlying_store.set(key, mine)
        return value.encode()

    def add(self, key: str, number: int) -> int:
        """Add to a counter, which cannot be signed: nothing that ends or changes a run may rest on it."""
        return int(self.underlying_store.add(key, number))

    def delete_key(self, key: str) -> bool:
        """Remove a key."""
        return bool(self.underlying_store.delete_key(key))

    # What is read

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist, whoever has written them."""
        return bool(self.underlying_store.check(list(keys)))

    def find(self, key: str) -> bytes | None:
        """Return a value, None if there is none that is believed."""
        return self.find_all([key]).get(key)

    def find_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values that are there and believed, by key."""
        listed = list(keys)
        if len(listed) > 1 and not self.check(listed):
            listed = [key for key in listed if self.check([key])]
        elif listed and not self.check(listed):
            listed = []
        contents = self.underlying_store.multi_get(listed) if listed else []
        opened = {
            key: self.signing.open(self._key(key), bytes(content))
            for key, content in zip(listed, contents, strict=True)
        }
        return {key: value for key, value in opened.items() if value is not None}

    def get(self, key: str) -> bytes:
        """Return a value; wait until it is there.

        Raises:
            DistStoreError: It has not come in time.
        """
        self.wait([key], _TIMEOUT)
        value = self.find(key)
        return self.get(key) if value is None else value

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until values are there.

        Raises:
            DistStoreError: They have not come in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        self.underlying_store.wait(list(keys), timeout)
        while self.signing.is_on and len(self.find_all(keys)) < len(keys):
            if time.monotonic() > deadline:
                raise DistStoreError(f"nobody of this run has written {', '.join(keys)}")
            time.sleep(_LOOK_S)

    def peek(self, key: str) -> tuple[bytes, bool]:
        """Return a value that is there, and whether it was signed."""
        content = bytes(self.underlying_store.get(key))
        return unsigned(content), self.signing.has_signed(self._key(key), content)

    # What is no message

    def clone(self) -> SignedStore:
        """Return the same on a connection of its own."""
        return SignedStore(self.underlying_store.clone(), self.signing, scope=self._scope)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long the store waits for a key."""
        self.underlying_store.set_timeout(timeout)

    def raw(self) -> SignedStore:
        """Return the store behind all prefixes, on the same connection."""
        store = self.underlying_store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return SignedStore(store, self.signing)
