"""The sampler of a DataLoader, as its iterators see it: it can begin in the middle of an epoch.

Indices are left out without reading their samples. What was left out is compared with what was
trained on before the stop, by a checksum, so that a sampler whose order cannot be repeated is
noticed.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Random = dict[str, Any]


@dataclass(frozen=True)
class Continuation:
    """Where the next loop over a sampler begins."""

    skip: int = 0  # index batches to leave out
    checksum: int | None = None  # checksum of those; None if unknown
    # global random state when the sampler was asked for its iterator, and for its first batch; None
    # to leave the present one
    random: tuple[Random, Random] | None = None
    # global random states to set before the samples of the first batches are read, one for each;
    # None for the state before anything was left out
    after: tuple[Random, ...] | None = ()
    # index batches to serve instead of the sampler's; None for the sampler's
    batches: Sequence[Any] | None = None


@dataclass
class Requests:
    """What the current loop has asked of the sampler."""

    # global random state at the call of ``iter``, and at the first request
    random: list[Random | None] = field(default_factory=lambda: [None, None])
    # for the number of each batch, the checksum of all up to it
    checksums: dict[int, int] = field(default_factory=dict)
    last_random: Random | None = None  # global random state at the last request, if it is kept


class IndexFeed:
    """Stands for the sampler of a DataLoader; everything but iteration is the sampler's."""

    def __init__(
        self,
        sampler: Any,  # that the DataLoader asks: its batch sampler, or its sampler
        *,
        read_random: Callable[[], Random],  # the global random state
        set_random: Callable[[Random], None],
        differs: Callable[[], None],  # called if a sampler repeats its order differently
    ) -> None:
        self._sampler, self._differs = sampler, differs
        self._read_random, self._set_random = read_random, set_random
        self.requests = Requests()  # what the current loop has asked
        self.continuation: Continuation | None = None  # where the next loop begins; used once
        # whether to keep the random state of each request, for a loader that reads a batch before
        # it has yielded the one before
        self.keeps_random = False

    def __len__(self) -> int:
        """Number of batches of a whole epoch on this rank."""
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_sampler":  # as of an object that is being copied
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __iter__(self) -> Iterator[Any]:
        """Return the index batches of the next loop, or the rest of an interrupted one.

        A DataLoader with workers calls this twice for its first loop, and uses the second result.
        """
        continuation = self.continuation
        self._set_continued(continuation, 0)
        self.requests = Requests()
        self.requests.random[0] = self._read_random()
        source = self._sampler
        if continuation is not None and continuation.batches is not None:
            source = continuation.batches
        return self._serve(iter(source), continuation, self.requests)

    def _serve(
        self, batches: Iterator[Any], continuation: Continuation | None, requests: Requests
    ) -> Iterator[Any]:
        self.continuation = None  # only now: the loop really begins with the first request
        present = self._read_random()
        self._set_continued(continuation, 1)
        requests.random[1] = self._read_random()
        checksum, start = 0, 0
        after: list[Random] = []
        if continuation is not None:
            after = [present] if continuation.after is None else list(continuation.after)
            checksum, start = self._skip(batches, continuation)
        for number, batch in enumerate(batches, start + 1):
            if after:
                self._set_random(after.pop(0))
            checksum = _add(checksum, batch)
            requests.checksums[number] = checksum
            if self.keeps_random:
                requests.last_random = self._read_random()
            yield batch
        for state in after:
            self._set_random(state)

    def _skip(self, batches: Iterator[Any], continuation: Continuation) -> tuple[int, int]:
        checksum, number = 0, 0
        while number < continuation.skip:
            batch = next(batches, None)
            if batch is None:
                break
            checksum, number = _add(checksum, batch), number + 1
        if continuation.checksum is not None and checksum != continuation.checksum:
            self._differs()
        return checksum, number

    def _set_continued(self, continuation: Continuation | None, moment: int) -> None:
        if continuation is not None and continuation.random is not None:
            self._set_random(continuation.random[moment])

    def forget_before(self, number: int) -> None:
        """Forget checksums of batches before ``number``, which can no longer be saved."""
        self.requests.checksums.pop(number - 1, None)


def _add(checksum: int, batch: Any) -> int:
    """Return the checksum of all batches up to one."""
    indices = batch if isinstance(batch, list | tuple) else [batch]
    try:
        content = array("q", indices).tobytes()
    except (TypeError, OverflowError):  # keys of another kind
        content = repr(indices).encode()
    return zlib.crc32(content, checksum)
