"""The samplers of a DataLoader: their state, where the next loop begins, and other ranks' shares.

A sampler may be inside a batch sampler, that inside another one, and the DataLoader inside a
wrapper that counts epochs itself. Their state (counters and generators) decides the order of the
next epoch. It is read before a loop begins, so that setting it before a loop makes that loop's
order the same.

A loop can begin in the middle of an epoch: indices are left out without reading their samples. What
was left out is compared with what was trained on before the stop, by a checksum, so that a sampler
whose order cannot be repeated is noticed.

If the number of ranks has changed, two kinds of samplers are known. torch's ``DistributedSampler``
deals one order of all samples to the ranks in turn, so after k batches of b samples on n ranks the
first k * b * n of that order are done. Accelerate's ``BatchSamplerShard`` deals batches instead.
"""

from __future__ import annotations

import copy
import random
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

# Of DistributedSampler and the like, Fabric's loader, Accelerate's, and SeedableRandomSampler.
_COUNTERS = ("epoch", "_num_iter_calls", "iteration", "initial_seed")
_INNER = ("_dataloader", "base_dataloader", "batch_sampler", "sampler")
_DEEPEST = 8  # wrappers around wrappers; a loop among objects ends here

State = dict[str, Any]


def read_state(loader: Any) -> dict[str, State]:
    """Return the state of a loader and of the samplers in it, by their places."""
    states = {}
    for place, part in _parts(loader):
        state = {
            name: _value_of(value)
            for name, value in vars(part).items()
            if name in _COUNTERS or _is_generator(value)
        }
        if state:
            states[place] = state
    return states


def write_state(loader: Any, states: dict[str, State]) -> None:
    """Set the state of a loader to what ``read`` returned; parts that it lacks are left out."""
    for place, part in _parts(loader):
        for name, value in states.get(place, {}).items():
            present = vars(part).get(name)
            if _is_generator(present):
                _set_generator(present, value)
            elif isinstance(value, int) and name in vars(part):
                vars(part)[name] = value


def _parts(loader: Any, place: str = "loader", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the objects that may have a part in the order, with their places."""
    if not hasattr(loader, "__dict__") or depth > _DEEPEST:
        return
    yield place, loader
    for name in _INNER:
        inner = vars(loader).get(name)
        if inner is not None:
            yield from _parts(inner, f"{place}.{name}", depth + 1)


def _is_generator(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy.random")
    is_numpy = numpy is not None and isinstance(value, numpy.Generator)
    return is_numpy or isinstance(value, torch.Generator | random.Random)


def _value_of(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    return value.bit_generator.state if _is_generator(value) else value


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state


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


_SAMPLES, _BATCHES, _PARTS = "samples", "batches", "parts of batches"

Layout = dict[str, Any]


def layout_of(loader: DataLoader[Any] | None) -> Layout | None:
    """Return how a loader's sampler deals an epoch to the ranks; None if that is unknown.

    It is what is dealt (``unit``), how many units all ranks take in one step (``each``), and what
    else has to be equal for the order to be the same.
    """
    batches: Any = getattr(loader, "batch_sampler", None)
    if type(batches).__name__ == "BatchSamplerShard":
        in_step = 1 if batches.split_batches else batches.num_processes
        unit = _PARTS if batches.split_batches else _BATCHES
        return {"unit": unit, "each": in_step, "batch_size": batches.batch_size}
    sampler: Any = getattr(batches, "sampler", None)
    if type(batches) is not BatchSampler or type(sampler) is not DistributedSampler:
        return None
    return {
        "unit": _SAMPLES,
        "each": batches.batch_size * sampler.num_replicas,
        "length": len(sampler.dataset),  # type: ignore[arg-type]
        "shuffle": sampler.shuffle,
        "seed": sampler.seed,
    }


def is_same_order(saved: Layout | None, present: Layout | None) -> bool:
    """Return whether two samplers deal the same order, to any number of ranks. Pure."""
    if saved is None or present is None:
        return False
    return {**saved, "each": 0} == {**present, "each": 0}


def remaining_batches(loader: DataLoader[Any], num_done: int) -> list[list[int]]:
    """Return this rank's index batches of an epoch of whose order some units are done.

    The loader's ``layout_of`` is known; its sampler is as at the epoch's begin.
    """
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        rest = list(islice(batches.batch_sampler, num_done, None))
        shard = copy.copy(batches)
        shard.batch_sampler = rest
        return list(shard)
    sampler: Any = batches.sampler
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank, whole.drop_last = 1, 0, False
    whole.num_samples = whole.total_size = len(sampler.dataset)
    shares = equal_shares(list(whole)[num_done:], sampler.num_replicas, drop=sampler.drop_last)
    return in_batches(
        shares[sampler.rank :: sampler.num_replicas],
        batches.batch_size,
        drop_last=batches.drop_last,
    )


def equal_shares(samples: Sequence[int], num_ranks: int, *, drop: bool) -> list[int]:
    """Return samples as many as ranks can share evenly: padded as torch pads, or cut. Pure."""
    if drop:
        return list(samples[: len(samples) // num_ranks * num_ranks])
    missing = -len(samples) % num_ranks
    return [*samples, *(list(samples) * missing)[:missing]]


def in_batches(samples: Sequence[int], size: int, *, drop_last: bool) -> list[list[int]]:
    """Return consecutive batches of samples. Pure."""
    batches = [list(samples[start : start + size]) for start in range(0, len(samples), size)]
    if drop_last and batches and len(batches[-1]) < size:
        batches.pop()
    return batches
