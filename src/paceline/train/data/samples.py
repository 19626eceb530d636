"""Seed the random numbers of each sample: a function of seed, epoch and index, in any worker."""

from __future__ import annotations

import copy
import ctypes
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, get_worker_info

from paceline.train.data.order import derive

WORKER_GRACE_S = 20.0  # how long a worker continues after SIGTERM

_MT19937_BYTES = 624 * 4 + 4  # words of its state, and the position in them
_spare: list[Any] = []  # NumPy's generator inside ``kept_state``, at most one

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

    Most datasets draw no random numbers, and seeding takes some 20 µs a sample. So samples are
    loaded without seeding at first, and loaded again if that has changed a global generator. From
    then on each sample is seeded.

    Args:
        dataset: The user's dataset.
        seed: Seed of the run.
        reader: Returns a batch of an epoch at once, as the default collate function makes it, given
            the epoch's number and indices; None to read sample by sample.
    """

    def __init__(self, dataset: Any, *, seed: int, reader: Reader | None = None) -> None:
        self.dataset = dataset
        self._seed, self._reader = seed, reader
        self._in_memory, self._draws = in_memory(dataset), False
        self._at_once = in_memory(dataset) or takes_batches(dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, request: Request) -> Any:
        """Return the samples of a batch."""
        epoch, indices = request
        if self._reader is not None:
            return self._reader(epoch, indices)
        if self._in_memory:
            return self._load(indices)
        with kept_state() as before:
            if not self._draws:
                samples = self._load(indices)
                self._draws = has_drawn(before)
                if not self._draws:
                    return samples
            return self._load_seeded(epoch, indices)

    def _load(self, indices: list[int]) -> Any:
        several = getattr(self.dataset, "__getitems__", None) if self._at_once else None
        return several(indices) if several else [self.dataset[index] for index in indices]

    def _load_seeded(self, epoch: int, indices: list[int]) -> Any:
        if self._at_once:
            seed_all(derive("samples", self._seed, epoch, indices[0]))
            return self._load(indices)
        samples = []
        for index in indices:
            seed_all(derive("sample", self._seed, epoch, index))
            samples.append(self.dataset[index])
        return samples


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


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy (if imported) and torch (the CPU's)."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def random_state() -> dict[str, Any]:
    """Return the state of the global generators that ``seed_all`` seeds."""
    numpy: Any = sys.modules.get("numpy.random")
    state = {"python": random.getstate(), "torch": torch.default_generator.get_state()}
    return {**state, "numpy": numpy.get_state()} if numpy else state


def set_random_state(state: dict[str, Any]) -> None:
    """Set the global generators to a state that ``random_state`` returned."""
    random.setstate(state["python"])
    torch.default_generator.set_state(state["torch"])
    numpy: Any = sys.modules.get("numpy.random")
    if numpy and "numpy" in state:
        numpy.set_state(state["numpy"])


class Fingerprint(NamedTuple):
    """States of the global generators, to detect draws."""

    python: Any
    torch: bytes
    numpy: bytes


@contextmanager
def kept_state() -> Iterator[Fingerprint]:
    """Restore the global random states at the end, as if nothing had been drawn.

    NumPy gets another generator meanwhile, because reading its state takes 40 to 80 µs. The only
    loss is the second of a pair of Gaussian numbers, which NumPy stores for the next call and then
    draws again.
    """
    numpy: Any = sys.modules.get("numpy.random")
    users = numpy.get_bit_generator() if numpy else None
    if numpy:
        if not _spare:
            _spare.append(numpy.MT19937(0))
        numpy.set_bit_generator(_spare[0])
    torch_state = torch.default_generator.get_state()
    before = Fingerprint(random.getstate(), _torch_memory(torch_state), _numpy_memory())
    try:
        yield before
    finally:
        random.setstate(before.python)
        torch.default_generator.set_state(torch_state)
        if numpy:
            numpy.set_bit_generator(users)


def has_drawn(before: Fingerprint) -> bool:
    """Return whether random numbers were drawn since ``kept_state`` was entered."""
    if _numpy_memory() != before.numpy or random.getstate() != before.python:
        return True
    return _torch_memory(torch.default_generator.get_state()) != before.torch


def _torch_memory(state: torch.Tensor) -> bytes:
    """Return the state of a torch generator as bytes, without NumPy."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _numpy_memory() -> bytes:
    """Return the state of NumPy's generator as bytes; empty if NumPy is not imported."""
    numpy: Any = sys.modules.get("numpy.random")
    return (
        ctypes.string_at(numpy.get_bit_generator().ctypes.state_address, _MT19937_BYTES)
        if numpy
        else b""
    )


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed the global generators inside the context; afterwards they are as before."""
    with kept_state():
        seed_all(derive(*parts))
        yield


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
            loading._worker_info = _changed(info, id=0, num_workers=1, dataset=stream.dataset)
            worker = 0  # the user's function may divide data by it, or seed with it
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
