"""Seed the random numbers of each sample: a function of seed, epoch and index, in any worker.

A state is 624 random words for each of Python's, NumPy's and torch's generator, and for each that
the dataset holds. Word ``k`` of
sample ``i`` is the high half of ``factors[k] * multiplier[i]``, a product modulo 2**64. The factors
are random numbers of the epoch, from SHAKE-128. A multiplier is an index, mixed by SplitMix64. This
is hashing by multiply-shift (Dietzfelbinger et al., "A reliable randomized algorithm for the
closest-pair problem", Journal of Algorithms 25, 1997).

Both are odd, so multiplying by either one permutes the odd numbers. Therefore the words of one
sample are as random as the output of SHAKE, and word ``k`` of all samples as random as that of
SplitMix64. The low half would be weak: its last bit is always 1. ``test_sample_states.py`` tests
both.

One product a word takes 0.5 µs for a generator and sample in a tight loop. SplitMix64 for each word
would take three times as long.
"""

from __future__ import annotations

import copy
import hashlib
import operator
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, get_worker_info

from paceline.train.data.counter_random import mixed_numbers
from paceline.train.data.generator_states import (
    NAMES,
    ROWS,
    WORDS,
    Twister,
    changed_since,
    kept_state,
    seed_some,
    twister_of,
)
from paceline.train.data.held_generators import HeldGenerators
from paceline.train.data.order import derive

_HALF = np.uint64(32)
_MASK = (1 << 64) - 1


class SampleStates:
    """Sets the global generators, and those of a dataset, before each sample of a batch."""

    def __init__(self, seed: int, held: Sequence[Twister] = ()) -> None:
        self._seed = seed
        self._epoch: int | None = None  # of which key and factors are
        self._key = 0
        self._factors = np.empty(0, dtype=np.uint64)
        # Allocated once: memory of this size is new at each allocation, and slow to write at first.
        self._products = np.empty((ROWS, WORDS), dtype=np.uint64)
        # Not shared with other loaders: a dataset may read another loader for a sample.
        self._twisters = {f"held {number}": twister for number, twister in enumerate(held)}
        # names of the dataset's generators, for before_each
        self.names_of_held = tuple(self._twisters)
        self._rows = {name: row for row, name in enumerate((*NAMES, *self.names_of_held))}

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what refers to memory of this process."""
        return SampleStates, (self._seed,)

    def before_each(
        self, epoch: int, indices: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Any]:
        """Yield each index, with the generators in its state.

        Indices are ints, or keys whose text is the same in each process. ``names`` are of ``NAMES``
        or ``names_of_held``. The state of one generator does not depend on the others.
        """
        if epoch != self._epoch:
            self._begin(epoch)
        for name in names:
            if name not in self._twisters:
                self._twisters[name] = twister_of(name)
        uses = [self._twisters[name].use for name in names]
        multipliers = mixed_numbers(self._key, _numbers_of(indices)) | np.uint64(1)
        for start in range(0, len(indices), ROWS):
            self._write_words(names, multipliers[start : start + ROWS, None])
            for row, index in enumerate(indices[start : start + ROWS]):
                for use in uses:
                    use(row)
                yield index

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._key = derive("sample", self._seed, epoch)
        source = hashlib.shake_128(f"words {self._seed} {epoch}".encode())
        stream = source.digest(len(self._rows) * WORDS * 8)
        factors = np.frombuffer(stream, dtype="<u8").astype(np.uint64) | np.uint64(1)
        self._factors = factors.reshape(len(self._rows), WORDS)

    def _write_words(self, names: Sequence[str], multipliers: np.ndarray) -> None:
        for name in names:
            words = self._twisters[name].words[: len(multipliers)]
            products = self._products[: len(multipliers), : words.shape[1]]
            factors = self._factors[self._rows[name], : words.shape[1]]
            np.multiply(factors, multipliers, out=products)
            np.right_shift(products, _HALF, out=words, casting="unsafe")


def _numbers_of(indices: Sequence[Any]) -> np.ndarray:
    """Return a number of 64 bits for each index, as uint64."""
    try:
        return np.array(list(map(operator.index, indices)), dtype=np.int64).astype(np.uint64)
    except (TypeError, OverflowError):
        return np.array([_number_of(index) for index in indices], dtype=np.uint64)


def _number_of(index: Any) -> int:
    """Return a number of 64 bits for an index; one of another type than int is hashed."""
    try:
        return operator.index(index) & _MASK
    except TypeError:
        return derive("key", index)


WORKER_GRACE_S = 20.0  # how long a worker continues after SIGTERM

Request = tuple[int, list[int]]  # number of the epoch, indices of samples
Reader = Callable[[int, list[int]], Any]


def in_memory(dataset: Any) -> bool:
    """Return whether reading a sample is only a lookup: no random numbers, decoding or waiting."""
    if type(dataset) is Subset:  # a subclass may transform the samples
        return in_memory(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(in_memory, dataset.datasets))
    return type(dataset) in (TensorDataset, torch.Tensor, list, tuple, range)


class Samples(Dataset[Any]):
    """The dataset passed to torch: the user's, with the random state set before each sample.

    It takes a whole batch's request at a time (``__getitems__``). Only requests reach a worker that
    outlives an epoch, so they also carry the epoch's number.

    Setting a generator takes 1 to 2.5 µs a sample. So only the generators that the dataset draws
    from are set: at first none. If loading a batch has changed another one, the batch is loaded
    again with that set too, as all later ones are. Those that the dataset holds are all set. They
    are looked for before the first batch of an epoch, and again after it, because some datasets
    make theirs then.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        # returns a batch of an epoch, given its number and indices; None to read by sample
        reader: Reader | None = None,
    ) -> None:
        self.dataset = dataset
        self._seed, self._reader = seed, reader
        self._in_memory = in_memory(dataset)
        self._states = SampleStates(seed)
        self._drawn: tuple[str, ...] = ()  # names of the global generators to set
        self._held: HeldGenerators | None = None  # None before the first batch
        self._looked_in: int | None = None  # epoch of the last look
        self._at_once = in_memory(dataset) or takes_batches(dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_states": SampleStates(self._seed)}

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, request: Request) -> Any:
        """Return the samples of a batch."""
        epoch, indices = request
        if self._reader is not None:
            return self._reader(epoch, indices)
        if self._in_memory:
            return self._load(indices)
        if self._held is not None and epoch == self._looked_in:
            return self._load_held(epoch, indices, self._held)
        self._looked_in = epoch
        held = self._look()
        samples = self._load_held(epoch, indices, held)
        if self._look() is held:
            return samples
        return self._load_held(epoch, indices, self._held)

    def _look(self) -> HeldGenerators:
        """Look for the generators that the dataset holds now."""
        if self._held is None or not self._held.are_those_of(self.dataset):
            self._held = HeldGenerators(self.dataset)
            self._states = SampleStates(self._seed, self._held.setters)
        return self._held

    def _load_held(self, epoch: int, indices: list[int], held: HeldGenerators | None) -> Any:
        if not held:
            return self._load_kept(epoch, indices)
        with held.kept():
            return self._load_kept(epoch, indices)

    def _load_kept(self, epoch: int, indices: list[int]) -> Any:
        with kept_state() as before:
            while True:
                samples = self._load_seeded(epoch, indices)
                others = changed_since(before, except_for=self._drawn)
                if not others:
                    return samples
                self._drawn += others

    def _load(self, indices: list[int]) -> Any:
        several = getattr(self.dataset, "__getitems__", None) if self._at_once else None
        return several(indices) if several else [self.dataset[index] for index in indices]

    def _load_seeded(self, epoch: int, indices: list[int]) -> Any:
        held = self._states.names_of_held
        if not self._drawn and not held:
            return self._load(indices)
        if self._at_once:
            seed_some(self._drawn, derive("samples", self._seed, epoch, indices[0]))
            next(self._states.before_each(epoch, indices[:1], held))
            return self._load(indices)
        dataset = self.dataset
        indices_in_turn = self._states.before_each(epoch, indices, self._drawn + held)
        return [dataset[index] for index in indices_in_turn]


class TensorReader:
    """Reads the batches of a ``TensorDataset``, one indexing operation for each tensor."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._tensors = dataset.tensors

    def __call__(self, epoch: int, indices: list[int]) -> list[torch.Tensor]:
        """Return some samples, the same in every epoch."""
        places = torch.tensor(indices)
        return [tensor[places] for tensor in self._tensors]


def takes_batches(dataset: Any) -> bool:
    """Return whether a dataset's own code loads many samples at once; torch's ``Subset`` delegates.

    If a subclass overrides only one of ``__getitem__`` and ``__getitems__``, only the overridden
    one may be called, because the inherited one would bypass it. A subclass that overrides both
    usually does so because torch looks for ``__getitems__`` too. That is usually a loop, so
    ``__getitem__`` is called, and each sample is seeded.
    """
    if isinstance(dataset, Subset):
        own_item, own_items = (
            getattr(type(dataset), name) is not getattr(Subset, name)
            for name in ("__getitem__", "__getitems__")
        )
        return own_items if own_item != own_items else takes_batches(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


def _outlive_signals() -> None:
    """Let a worker continue after a signal to all processes: its rank needs it to complete a step.

    Schedulers, ``timeout`` and terminals send such signals. SIGTERM ends the worker after a while,
    because torch uses it for workers that do not exit.
    """
    for name in ("SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(
            signal.SIGTERM, lambda *_: signal.setitimer(signal.ITIMER_REAL, WORKER_GRACE_S)
        )


def _renew_locks() -> None:
    """Give fsspec a new lock, as Hugging Face does in a worker: a forked one may be locked."""
    fsspec: Any = sys.modules.get("fsspec.asyn")
    if fsspec is not None and hasattr(fsspec, "reset_lock"):
        fsspec.reset_lock()


class WorkerStart:
    """Starts a worker: shows the user's dataset in ``get_worker_info``, and calls their function.

    The user's function sees a stream's worker as the only one. We divide what the stream yields; a
    stream that divided itself among workers too, as in torch's documentation, would lose the other
    workers' part. While a stream is read it sees no worker at all; see ``stream.py``.
    """

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        from torch.utils.data._utils import worker as loading

        _outlive_signals()
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Samples):
            loading._worker_info = _changed(info, dataset=info.dataset.dataset)
        elif info is not None:
            stream: Any = info.dataset
            stream.worker = (info.id, info.num_workers)
            numbers = {} if stream.is_divided else {"id": 0, "num_workers": 1}
            loading._worker_info = _changed(info, dataset=stream.dataset, **numbers)
            worker = loading._worker_info.id  # the user's function may divide data by it
            _renew_locks()
        if self._user is not None:
            self._user(worker)


def _changed(info: Any, **values: Any) -> Any:
    """Return a copy of torch's worker info with other values.

    All versions of torch refuse assignment to them, and only newer ones make it a dataclass.
    """
    new = copy.copy(info)
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new
