"""Let all ranks agree on the step after which they stop, without a collective.

A loop of the user's own may give ranks different numbers of batches, as with torch's ``Join``. A
collective that one rank runs and another does not would be paired with a collective of the model.
So ranks write to the process group's store, and none waits for another:

1. A rank that was asked to stop writes that down. The others look about once a second.
2. A rank that knows it counts itself, and from now on looks after every step.
3. When all have counted themselves, rank 0 writes the place of the next boundary.

A boundary is the end of an optimizer step, and its place is the number of the loop and of the batch
in it: what ranks have in common also after an epoch that was longer for some. Gradients are
averaged in each step, so no rank is past the next boundary when rank 0 writes it, and each sees it
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.machine.signed_store import SignedStore

Boundary = tuple[int, int]  # loops before this one, and batches in it

LOOK_EVERY_S = 1.0  # a look is a round trip to the store of some 100 µs


class Agreement:
    """One rank's part in the agreement.

    Launching a step on a GPU does not wait for the other ranks, only its end does.
    """

    def __init__(
        self,
        asked_by: Callable[[], str],  # what has asked this rank to stop; empty without a request
        store: SignedStore | None,  # of all ranks; None in a world of one
        *,
        rank: int,
        world_size: int,
        # waits until this rank's device has done its work
        synchronize: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,  # in seconds
    ) -> None:
        self._asked_by, self._store, self._synchronize = asked_by, store, synchronize
        self._rank, self._world_size, self._clock = rank, world_size, clock
        self._next_look_s = clock() + LOOK_EVERY_S
        self._knows = False
        self._stops_at: Boundary | None = None

    @property
    def by(self) -> str:
        """What has asked for the stop, on whichever rank; empty if none was asked."""
        asked = self._store.find("asked") if self._store is not None else None
        return self._asked_by() if asked is None else asked.decode()

    def stops(self, here: Boundary) -> bool:
        """Return whether all ranks stop at this boundary; call it at each."""
        if self._store is None:
            return bool(self._asked_by())
        if not self._knows:
            self._knows = self._learns(self._store)
        return self._knows and self._has_come(self._store, here)

    def _learns(self, store: SignedStore) -> bool:
        if by := self._asked_by():
            store.set("asked", by)
        elif self._clock() < self._next_look_s:
            return False
        elif store.find("asked") is None:
            self._next_look_s = self._clock() + LOOK_EVERY_S
            return False
        store.add("know", 1)
        return True

    def _has_come(self, store: SignedStore, here: Boundary) -> bool:
        self._synchronize()
        if self._stops_at is None and (by := self._asked_by()):
            store.set("asked", by)  # again: a stranger may have written over it
        if self._stops_at is None and self._rank == 0 and store.add("know", 0) == self._world_size:
            self._stops_at = (here[0], here[1] + 1)
            store.set("at", f"{here[0]} {here[1] + 1}")
        if self._stops_at is None and (at := store.find("at")) is not None:
            loop, batch = at.split()
            self._stops_at = (int(loop), int(batch))
        return self._stops_at is not None and here >= self._stops_at
