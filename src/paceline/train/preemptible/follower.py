"""Follow the training loops over one loader, and begin a loop where an earlier run stopped.

The loader keeps its identity and gets a subclass of its class, in which ``__iter__`` is followed.
Loops without gradients are evaluations, which are left alone. A loop counts as training once an
optimizer has stepped after one of its batches, so that a look at the first batch does not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.errors import UsageError, option_invalid
from paceline.train.preemptible import samplers
from paceline.train.preemptible.objects import WHERE, loader_of
from paceline.train.preemptible.samplers import Continuation, IndexFeed, Random

Position = dict[str, Any]

TRAINED, LOOKED = "1", "0"  # one for each loop that ended, in LoopFollower.history


class LoopOwner(Protocol):
    """What decides about the loops."""

    def begins(self, follower: LoopFollower) -> bool:
        """Act before a loop begins; return whether its batches are passed over."""

    def continues(self, follower: LoopFollower, before: Random | None) -> None:
        """Act before a batch after the first is handed out.

        ``before`` is the global random state before it was read; None if it was not read yet.
        """

    def read_random(self) -> Random:
        """Return the global random state."""

    def set_random(self, state: Random) -> None:
        """Set the global random state."""

    def say(self, text: str) -> None:
        """Print a line on rank 0, once."""


class LoopFollower:
    """The loops over one loader.

    Raises UsageError if the loader is not an object whose loops can be followed.
    """

    def __init__(
        self,
        # a DataLoader, what Fabric or Accelerate made of one, or another iterable object
        loader: Any,
        owner: LoopOwner,  # decides where loops end and begin
    ) -> None:
        self._owner = owner
        self._inner = _weakly(loader_of(loader))
        self.history = ""  # one character for each loop that has ended: ``TRAINED`` or ``LOOKED``
        self.served, self.is_under_way, self.trains = 0, False, False
        self._before = 0  # units of the epoch that were done with other numbers of ranks
        self._length: int | None = None
        self._begun: dict[str, Any] = {}  # state of samplers and generators at the loop's begin
        self._begun_random: Random = {}
        self._to_read: tuple[int, Random] | None = None  # batches to read again, and what follows
        self._feed = self._make_feed()
        _follow(loader, self, self._feed)
        self._outer = weakref.ref(loader)

    def _make_feed(self) -> IndexFeed | None:
        inner = self._inner()
        if inner is None or isinstance(inner.dataset, IterableDataset):
            return None
        return IndexFeed(
            inner._index_sampler,
            read_random=self._owner.read_random,
            set_random=self._owner.set_random,
            differs=self._say_order_differs,
        )

    def begin(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return the iterator of a loop that begins."""
        if not torch.is_grad_enabled():
            return make()
        self.end()
        self._length = _length_of(self._outer())
        self._begun = self._state()
        if self._owner.begins(self):
            self.history += TRAINED
            return iter(())
        self.is_under_way = True
        self._begun_random = self._owner.read_random()
        if self._feed is not None:
            self._feed.keeps_random = self._reads_ahead()
        batches = make()
        if self._to_read is not None:
            self._read(batches, *self._to_read)
        return FollowedBatches(self, batches)

    def end(self) -> None:
        """Record that the current loop, if there is one, has ended or was left."""
        if self.is_under_way:
            self.history += TRAINED if self.trains else LOOKED
        self.is_under_way, self.trains, self.served, self._before = False, False, 0, 0

    def next_of(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, or end the run before it.

        Nobody stops after the last batch of an epoch, where a resumed loop would be empty. Whether
        a stream has another batch is known only when it is read.
        """
        if self._length is None:
            before = self._owner.read_random()
            batch = self._read_one(batches)
            if self.served:
                self._owner.continues(self, before)
        else:
            if 0 < self.served < self._length:
                self._owner.continues(self, None)
            batch = self._read_one(batches)
        self.served += 1
        if self._feed is not None:
            self._feed.forget_before(self.served)
        return batch

    def _read_one(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches)
        except StopIteration:
            self.end()
            raise

    def _reads_ahead(self) -> bool:
        """Whether the loader reads a batch in this process before it yields the one before."""
        inner = self._inner()
        is_accelerates = "base_dataloader" in vars(self._outer())
        return is_accelerates and inner is not None and inner.num_workers == 0

    def position(self) -> Position:
        """Return the position of this rank, to be saved."""
        if not self.is_under_way or not self.served:
            return {"history": self.history, "served": 0, "before": 0, "samplers": self._state()}
        feed = self._feed
        requests = feed.requests if feed is not None else None
        layout = samplers.layout_of(self._inner())
        return {
            "history": self.history,
            "served": self.served,
            "before": self._before,
            "layout": layout,
            "samplers": self._begun,
            "begun_random": self._begun_random,
            "random": tuple(requests.random) if requests else None,
            "checksum": requests.checksums.get(self.served) if requests else None,
            "read_random": requests.last_random if requests else None,
        }

    def _state(self) -> dict[str, Any]:
        return samplers.read_state(self._outer())

    def resume(self, position: Position, stopped: Random | None, *, is_first: bool) -> None:
        """Let the loop that begins now continue from a result of ``position``.

        ``stopped`` is the global random state at the stop; None if the number of ranks has changed.
        The first loop sets it; loops over other loaders begin later, and leave the state as it is.
        """
        samplers.write_state(self._outer(), position["samplers"])
        self._begun = self._state()
        num_done = position["served"]
        if stopped is not None and not num_done:
            if is_first:
                self._owner.set_random(stopped)
        elif stopped is None or position["before"]:
            self._resume_on_other_ranks(position)
        elif self._feed is not None:
            self._resume_exactly(self._feed, position, stopped if is_first else None)
        else:
            after = stopped if is_first else self._owner.read_random()
            self._owner.set_random(position["begun_random"])
            self._to_read = (num_done, after)

    def _resume_exactly(self, feed: IndexFeed, position: Position, stopped: Random | None) -> None:
        # batches that the current loop has yielded, also before a resume
        self.served = position["served"]
        read = position["read_random"]
        after: tuple[Random, ...] | None = None
        if stopped is not None:
            after = (stopped,) if read is None else (read, stopped)
        feed.continuation = Continuation(
            skip=position["served"],
            checksum=position["checksum"],
            random=position["random"],
            after=after,
        )
        inner = self._inner()
        if inner is not None and inner.num_workers:
            self._owner.say(
                "what samples draw at random in DataLoader workers differs from a run without the"
                " stop, until the end of this epoch"
            )

    def _resume_on_other_ranks(self, position: Position) -> None:
        inner, layout = self._inner(), position.get("layout")
        if not position["served"] and not position["before"]:
            return
        is_same_order = samplers.is_same_order(layout, samplers.layout_of(inner))
        if self._feed is None or inner is None or not is_same_order:
            self._owner.say(
                "the interrupted epoch begins again, and repeats samples: on another number of"
                " ranks its rest is known only with a DistributedSampler over the same data"
            )
            return
        done = position["before"] + position["served"] * position["layout"]["each"]
        batches = samplers.remaining_batches(inner, done)
        self._before, self._length = done, len(batches)
        self._feed.continuation = Continuation(batches=batches)

    def _read(self, batches: Iterator[Any], num_done: int, stopped: Random) -> None:
        """Read batches that were trained on before the stop, and leave them out."""
        self._owner.say(f"reads {num_done} batches again that were trained on, to leave them out")
        self._to_read = None
        for _ in range(num_done):
            next(batches, None)
        self.served = num_done
        self._owner.set_random(stopped)

    def _say_order_differs(self) -> None:
        self._owner.say(
            "the sampler repeats another order than before the stop: samples of this epoch may be"
            " repeated or left out; give it a seed or a generator"
        )


class FollowedBatches:
    """The batches of one training loop."""

    def __init__(
        self,
        follower: LoopFollower,  # decides before each batch, and counts it
        batches: Iterator[Any],  # the loader's own iterator
    ) -> None:
        self._follower, self._batches = follower, batches

    def __iter__(self) -> FollowedBatches:
        return self

    def __next__(self) -> Any:
        return self._follower.next_of(self._batches)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)


def _follow(loader: Any, follower: LoopFollower, feed: IndexFeed | None) -> None:
    """Give a loader, and the DataLoader in it, subclasses that are followed."""
    kind: Any = type(loader)
    if not hasattr(kind, "__iter__") or not kind.__weakrefoffset__:  # such as a list
        raise _not_a_loader(loader)
    inner = loader_of(loader) if feed is not None else None
    followed = weakref.ref(loader)

    def begin(self: Any) -> Iterator[Any]:
        if self is not followed():  # Fabric makes other loaders of the class of one
            return kind.__iter__(self)  # type: ignore[no-any-return]
        return follower.begin(lambda: kind.__iter__(self))

    if inner is loader:
        _become(loader, {"__iter__": begin, "_index_sampler": _sampler_of(inner, feed)})
        return
    _become(loader, {"__iter__": begin})
    if inner is not None:
        _become(inner, {"_index_sampler": _sampler_of(inner, feed)})


def _sampler_of(loader: Any, feed: IndexFeed | None) -> property:
    """Return the property of one loader's sampler; other loaders of the class have their own."""
    kind, followed = type(loader), weakref.ref(loader)
    return property(lambda self: feed if self is followed() else kind._index_sampler.fget(self))


def _become(loader: Any, members: dict[str, Any]) -> None:
    kind = type(loader)
    own = type(kind.__name__, (kind,), {"__module__": kind.__module__, **members})
    try:
        # Not by assignment: Accelerate's loaders have a property of this name.
        vars(object)["__class__"].__set__(loader, own)
    except TypeError:
        raise _not_a_loader(loader) from None


def _not_a_loader(loader: Any) -> UsageError:
    return option_invalid(
        f"loader= is a {type(loader).__name__}, whose loops cannot be followed",
        where=WHERE,
        fix="loader=DataLoader(...), over which the training loop runs",
    )


def _length_of(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream
        return None


def _weakly(loader: DataLoader[Any] | None) -> Callable[[], DataLoader[Any] | None]:
    return (lambda: None) if loader is None else weakref.ref(loader)
