"""Check that ranks read the same data: compare digests of samples without waiting for each other.

The first rank at a place stores its digest, and the other ranks compare theirs with it. So no rank
waits for another, and a loop that only some ranks run is harmless.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch

from paceline.errors import UsageError
from paceline.train.data.order import derive
from paceline.world import World

EVERY = 1024  # batches between two checks, after the first ones
MOST_SAMPLES = 64  # samples of a batch to digest
MOST_ELEMENTS = 256  # elements of an array or list to digest
_PLACES = ("__url__", "__local_path__", "__worker__", "__rank__", "__nodeid__")  # differ by node
_SAME_DATA = (
    "make the data after session = paceline.Session(seed=0), which seeds all ranks alike; pass the"
    " whole of it, without .shard(...) or a split by rank"
)
_SAME_ORDER = "seed the sampler alike on all ranks: generator=torch.Generator().manual_seed(0)"


class Mark(NamedTuple):
    """A digest of samples."""

    labels: str  # digest of names, classes and other single values
    differ: bool  # whether the samples have different labels
    contents: str  # digest of numbers: images, features, tokens

    def __str__(self) -> str:
        return f"{self.labels} {int(self.differ)} {self.contents}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Return the mark that ``str`` wrote."""
        labels, differ, contents = text.split(" ")
        return cls(labels, differ == "1", contents)


def is_due(number: int) -> bool:
    """Return whether a batch is checked: batches 0, 1, 2, 4, 8 and so on, and every 1024th."""
    return number & (number - 1) == 0 or number % EVERY == 0


def is_other(mark: Mark, first: Mark) -> bool:
    """Return whether two ranks have read different samples.

    An augmentation with a separate generator makes different numbers of the same sample on each
    rank. So if samples have different labels, only the labels are compared.
    """
    if mark.labels != first.labels:
        return True
    return mark.contents != first.contents and not mark.differ


def mark_of(samples: Iterable[Any]) -> Mark:
    """Return the mark of the first samples."""
    labels, contents = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    digests = set()
    for sample in islice(samples, MOST_SAMPLES):
        own = hashlib.blake2b(digest_size=8)
        _add(sample, own, contents)
        digests.add(own.digest())
        labels.update(own.digest())
    return Mark(labels.hexdigest(), len(digests) > 1, contents.hexdigest())


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
        for key, part in value.items():  # the iterator of a TensorDict yields no keys
            if key not in _PLACES:
                _add(part, labels, contents)
    elif isinstance(value, list | tuple):
        _add_sequence(value, labels, contents)
    else:
        _add_array(value, labels, contents)


def _add_sequence(value: Any, labels: Any, contents: Any) -> None:
    is_of_numbers = len(value) > 1 and all(
        isinstance(item, int | float) for item in value[:MOST_ELEMENTS]
    )
    if is_of_numbers:  # tokens, pixels
        contents.update(repr(value[:MOST_ELEMENTS]).encode())
        return
    for item in value[:MOST_ELEMENTS]:
        _add(item, labels, contents)


def _add_array(value: Any, labels: Any, contents: Any) -> None:
    try:
        is_label, text = _label_or_content(value)
    except Exception:  # a sparse tensor, or any object of a library, and the run must continue
        is_label, text = True, type(value).__name__
    (labels if is_label else contents).update(text.encode() + b"\0")


def _label_or_content(value: Any) -> tuple[bool, str]:
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor):
        is_label = value.numel() == 1 and not value.is_floating_point() and not value.is_complex()
    elif numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        is_label = value.size == 1 and value.dtype.kind in "biuUS"
    elif callable(getattr(value, "tobytes", None)):  # a picture
        return False, hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()
    else:
        return True, type(value).__name__
    return is_label, repr((list(value.shape), value.reshape(-1)[:MOST_ELEMENTS].tolist()))


class SameDataCheck:
    """Compares the data that ranks read through one loader."""

    def __init__(
        self,
        # sets a store key if it is unset, and returns its value
        first_of: Callable[[str, str], str],
        total: Callable[[list[int]], list[int]],  # sums of ints over all ranks; a collective
        *,
        world: World,
        name: str,  # type of the dataset
        alike: bool,  # ranks must read the same data
    ) -> None:
        self._first_of, self._total, self._world, self._name = first_of, total, world, name
        self._is_checked = self._is_seen = world.world_size == 1 or not alike

    def check(self, mark: Callable[[], object]) -> None:
        """Check once, in a collective, that all ranks have the same data, without reading it.

        Raises UsageError if the datasets differ; raised on all ranks.
        """
        if not self._is_checked:
            self._is_checked = True
            if not self._are_alike(mark()):
                raise _not_alike(f"{self._name} is not the same dataset on all ranks", _SAME_DATA)

    def see_dataset(self, mark: Callable[[], object]) -> None:
        """Check the same in an evaluation, without a collective."""
        if not self._is_checked and not self._is_seen:
            self._is_seen = True
            own = f"{derive(mark())}"
            if self._first_of("dataset", own) != own:
                raise _not_alike(f"{self._name} is not the same dataset on all ranks", _SAME_DATA)

    def check_drawn(self, drawn: list[Any], sampler: Any) -> None:
        """Check that a sampler drew the same on all ranks; a collective.

        Raises UsageError if the orders differ; raised on all ranks.
        """
        if not self._are_alike(drawn):
            what = f"{type(sampler).__name__} yields another order on each rank"
            raise _not_alike(what, _SAME_ORDER)

    def see_stream(self, key: str, mark: Mark) -> None:
        """Compare samples of a stream at a place in it, by their digest.

        Raises UsageError if another rank has read other samples.
        """
        first = Mark.parse(self._first_of(f"stream/{key}", str(mark)))
        if is_other(mark, first):
            raise shared_twice(
                f"{self._name} yields other samples on rank {self._world.rank} than on another"
                " rank",
                fix=(
                    "session.loader(stream, per_rank_batch_size=..., sharded=True) if each rank is"
                    " to read its own part, else seed the stream's order alike on all ranks"
                ),
            )

    def _are_alike(self, mark: object) -> bool:
        number = derive(mark) & 0xFFFFF
        total, squares = self._total([number, number * number])
        return self._world.world_size * squares == total * total  # their variance is 0


def _not_alike(what: str, fix: str) -> UsageError:
    return UsageError.of(
        "data-not-shardable",
        what,
        where="session.loader(...)",
        why=(
            "ranks share out one order of one dataset; otherwise samples are missing and others"
            " come twice"
        ),
        fix=fix,
    )


def shared_twice(what: str, *, fix: str) -> UsageError:
    """Return the error for a stream that was divided among ranks already."""
    return UsageError.of(
        "data-shared-twice",
        what,
        where="session.loader(...)",
        why=(
            "each rank keeps its rows of a stream that all read alike; of a part of the stream"
            " it would leave out most samples"
        ),
        fix=fix,
    )
