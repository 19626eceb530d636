"""The store as launchers and ranks use it: sign what is written, ignore what has no signature."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from paceline.machine.signing import Signing, unsigned

_LOOK_S = 0.02
_TIMEOUT = timedelta(seconds=30)


class SignedStore:
    """A store, or a prefix of one, with signatures.

    A message without a valid signature counts as missing. If another program has overwritten a
    message, the writer may write it again.
    """

    def __init__(
        self,
        store: Any,  # or a prefix of one
        signing: Signing | None = None,  # without it no message is signed and all are accepted
        *,
        scope: str = "",  # separates stores with the same keys, such as those of two attempts
    ) -> None:
        self.underlying_store = store
        self.signing = signing or Signing()
        self._scope = scope

    @classmethod
    def of(cls, store: Any) -> SignedStore:
        """Return a ``SignedStore`` unchanged, and any other store without signatures."""
        return store if isinstance(store, cls) else cls(store)

    def _key(self, key: str) -> str:
        return f"{self._scope}|{key}"

    def closed(self, key: str, value: str | bytes) -> bytes:
        """Return a value in the form in which it is written under a key."""
        return self.signing.close(
            self._key(key), value.encode() if isinstance(value, str) else value
        )

    # Writes

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self.underlying_store.set(key, self.closed(key, value))

    def multi_set(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Write several values."""
        closed = [self.closed(key, value) for key, value in zip(keys, values, strict=True)]
        self.underlying_store.multi_set(keys, closed)

    def claim(self, key: str, value: str) -> bytes:
        """Write a value unless there is one; return the value that is there then."""
        mine = self.closed(key, value)
        there = bytes(self.underlying_store.compare_set(key, "", mine))
        if there != mine:
            other = self.signing.open(self._key(key), there)
            if other is not None:
                return other
            self.underlying_store.set(key, mine)
        return value.encode()

    def add(self, key: str, number: int) -> int:
        """Add to a counter, which cannot be signed: nothing that ends or changes a run uses one."""
        return int(self.underlying_store.add(key, number))

    def delete_key(self, key: str) -> bool:
        """Remove a key."""
        return bool(self.underlying_store.delete_key(key))

    # Reads

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys exist; signatures are not checked."""
        return bool(self.underlying_store.check(list(keys)))

    def find(self, key: str) -> bytes | None:
        """Return a value; None if there is none with a valid signature."""
        return self.find_all([key]).get(key)

    def find_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values that exist and have valid signatures, by key."""
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

    def find_by_node(self, prefix: str, nodes: Iterable[int]) -> dict[int, bytes]:
        """Return the values that nodes have written under ``PREFIX/NODE``, by node rank."""
        keys = {node: f"{prefix}/{node}" for node in nodes}
        values = self.find_all(keys.values())
        return {node: values[key] for node, key in keys.items() if key in values}

    def get(self, key: str) -> bytes:
        """Return a value; wait until it is there.

        Raises DistStoreError if the value has not come in time.
        """
        self.wait([key], _TIMEOUT)
        value = self.find(key)
        return self.get(key) if value is None else value

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until values are there.

        Raises DistStoreError if some values have not come in time.
        """
        from torch.distributed import DistStoreError

        deadline = time.monotonic() + timeout.total_seconds()
        self.underlying_store.wait(list(keys), timeout)
        while self.signing.is_on and len(self.find_all(keys)) < len(keys):
            if time.monotonic() > deadline:
                raise DistStoreError(f"nobody of this run has written {', '.join(keys)}")
            time.sleep(_LOOK_S)

    def peek(self, key: str) -> tuple[bytes, bool]:
        """Return an existing value, and whether it was signed."""
        content = bytes(self.underlying_store.get(key))
        return unsigned(content), self.signing.has_signed(self._key(key), content)

    # The connection

    def clone(self) -> SignedStore:
        """Return a store with the same settings on a separate connection."""
        return SignedStore(self.underlying_store.clone(), self.signing, scope=self._scope)

    def below(self, prefix: str) -> SignedStore:
        """Return the part of the store whose keys have a prefix."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        store = PrefixStore(prefix, self.underlying_store)
        return SignedStore(store, self.signing, scope=f"{self._scope}/{prefix}")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long the store waits for a key."""
        self.underlying_store.set_timeout(timeout)

    def raw(self) -> SignedStore:
        """Return the store behind all prefixes, on the same connection."""
        store = self.underlying_store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return SignedStore(store, self.signing)
