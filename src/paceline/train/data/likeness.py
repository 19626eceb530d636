"""Whether ranks read the same: marks of what was read, compared without waiting for each other.

The first rank that gets somewhere leaves its mark in the store, and the others compare theirs with it. So nobody
waits, and a loop that only some ranks run does no harm.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch

from paceline.errors import Finding, UsageError
from paceline.train.data.order import derive
from paceline.world import World

EVERY = 1024  # batches between two looks, after the first ones
MOST_SAMPLES = 64  # of a batch
MOST_ELEMENTS = 256  # of an array, or of a list
_PLACES = ("__url__", "__local_path__", "__worker__", "__rank__", "__nodeid__")  # nodes may hold copies elsewhere


class Mark(NamedTuple):
    """What was read, in short.

    Attributes:
        labels: Digest of names, classes and other single values.
        differ: Whether the samples have different ones.
        contents: Digest of numbers: images, features, tokens.
    """

    labels: str
    differ: bool
    contents: str

    def __str__(self) -> str:
        return f"{self.labels} {int(self.differ)} {self.contents}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Return a mark of its text."""
        labels, differ, contents = text.split(" ")
        return cls(labels, differ == "1", contents)


def is_due(number: int) -> bool:
    """Return whether a batch is marked: early ones, and now and then."""
    return number & (number - 1) == 0 or number % EVERY == 0


def is_other(mark: Mark, first: Mark) -> bool:
    """Return whether two ranks have read different samples.

    An augmentation with a generator of its own makes different numbers of the same sample on each rank. So where
    samples have different labels, the labels decide.
    """
    if mark.labels != first.labels:
        return True
    return mark.contents != first.contents and not mark.differ


def mark_of(samples: Iterable[Any]) -> Mark:
    """Return the mark of some samples."""
    labels, contents = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    seen = set()
    for sample in islice(samples, MOST_SAMPLES):
        own = hashlib.blake2b(digest_size=8)
        _add(sample, own, contents)
        seen.add(own.digest())
        labels.update(own.digest())
    return Mark(labels.hexdigest(), len(seen) > 1, contents.hexdigest())


def _add(value: Any, labels: Any, contents: Any) -> None:
    if isinstance(value, str | os.PathLike):
        labels.update(os.path.basename(os.fspath(value)).encode(errors="replace") + b"\0")
    elif isinstance(value, bytes):
        contents.update(hashlib.blake2b(value, digest_size=8).digest())
    elif isinstance(value, bool | int | None):
        labels.update(repr(value).encode() + b"\0")
    elif isinstance(value, float):
        contents.update(repr(value).encode() + b"\0")
    elif isinstance(value, Mapping):
        for key in value:
            if key not in _PLACES:
                _add(value[key], labels, contents)
    elif isinstance(value, list | tuple):
        _add_sequence(value, labels, contents)
    else:
        _add_array(value, labels, contents)


def _add_sequence(value: Any, labels: Any, contents: Any) -> None:
    is_of_numbers = len(value) > 1 and all(isinstance(each, int | float) for each in value[:MOST_ELEMENTS])
    if is_of_numbers:  # tokens, pixels
        contents.update(repr(value[:MOST_ELEMENTS]).encode())
        return
    for each in value[:MOST_ELEMENTS]:
        _add(each, labels, contents)


def _add_array(value: Any, labels: Any, contents: Any) -> None:
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor):
        is_label = value.numel() == 1 and not value.is_floating_point() and not value.is_complex()
        text = repr((list(value.shape), value.detach().reshape(-1)[:MOST_ELEMENTS].tolist()))
    elif numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        is_label = value.size == 1 and value.dtype.kind in "biuUS"
        text = repr((list(value.shape), value.reshape(-1)[:MOST_ELEMENTS].tolist()))
    elif callable(getattr(value, "tobytes", None)):  # a picture
        is_label, text = False, hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()
    else:
        is_label, text = True, type(value).__name__
    (labels if is_label else contents).update(text.encode() + b"\0")


class Likeness:
    """Compares what the ranks read through one loader.

    Args:
        first_of: Returns the value under a key that a rank has set first.
        total: Returns the sums of ints over all ranks.
        world: The ranks.
        name: The dataset's type.
        alike: Whether ranks are to read the same.
    """

    def __init__(
        self,
        first_of: Callable[[str, str], str],
        total: Callable[[list[int]], list[int]],
        *,
        world: World,
        name: str,
        alike: bool,
    ) -> None:
        self._first_of, self._total, self._world, self._name = first_of, total, world, name
        self._is_checked = self._is_seen = world.world_size == 1 or not alike

    def check(self, mark: Callable[[], object]) -> None:
        """See once, where all ranks are, that they have the same data, as far as can be seen without reading it.

        Raises:
            UsageError: They do not; on all ranks.
        """
        if not self._is_checked:
            self._is_checked = True
            if not self._are_alike(mark()):
                raise _not_alike(f"{self._name} is not the same dataset on all ranks")

    def see_dataset(self, mark: Callable[[], object]) -> None:
        """See the same in an evaluation, where ranks do not meet."""
        if not self._is_checked and not self._is_seen:
            self._is_seen = True
            own = f"{derive(mark())}"
            if self._first_of("dataset", own) != own:
                raise _not_alike(f"{self._name} is not the same dataset on all ranks")

    def check_drawn(self, drawn: list[Any], sampler: Any) -> None:
        """See that a sampler has drawn the same on all ranks, which are all here.

        Raises:
            UsageError: It has not; on all ranks.
        """
        if not self._are_alike(drawn):
            raise _not_alike(f"{type(sampler).__name__} yields another order on each rank")

    def see_stream(self, key: str, mark: Mark) -> None:
        """Compare what a stream yields.

        Args:
            key: Where in the stream that is.
            mark: What was read there.

        Raises:
            UsageError: Another rank has read something else.
        """
        first = Mark.parse(self._first_of(f"stream/{key}", str(mark)))
        if is_other(mark, first):
            raise shared_twice(
                f"{self._name} yields other samples on rank {self._world.rank} than on another rank",
                fix="session.loader(stream, per_rank_batch_size=..., sharded=True) if each rank is to read its own "
                "part, else seed the stream's order alike on all ranks",
            )

    def _are_alike(self, mark: object) -> bool:
        number = derive(mark) & 0xFFFFF
        total, squares = self._total([number, number * number])
        return self._world.world_size * squares == total * total  # their variance is 0


def _not_alike(what: str) -> UsageError:
    return UsageError(
        Finding(
            "data-not-shardable",
            what,
            where="session.loader(...)",
            why="ranks share out one order of one dataset; otherwise samples are missing and others come twice",
            fix="hand over the whole dataset, without .shard(...) or a split by rank; seed what is random in it alike "
            "on all ranks: generator=torch.Generator().manual_seed(0)",
        )
    )


def shared_twice(what: str, *, fix: str) -> UsageError:
    """Return what is raised for a stream of which each rank reads a part already."""
    return UsageError(
        Finding(
            "data-shared-twice",
            what,
            where="session.loader(...)",
            why="each rank keeps its rows of a stream that all read alike; of a part of the stream it would leave out "
            "most samples",
            fix=fix,
        )
    )
