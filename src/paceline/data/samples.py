"""Each sample's own randomness: a function of seed, epoch and index, wherever it is loaded."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, get_worker_info

from paceline.data.order import derive

Request = tuple[int, list[int]]  # number of the epoch, indices of samples


def in_memory(dataset: Any) -> bool:
    """Return whether reading a sample is only looking it up: nothing is drawn, decoded or waited for."""
    if isinstance(dataset, Subset):
        return in_memory(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return all(map(in_memory, dataset.datasets))
    return type(dataset) in (TensorDataset, torch.Tensor, list, tuple, range)


def draws_nothing(dataset: Any) -> bool:
    """Return whether it is known that samples hold no randomness of their own."""
    if isinstance(dataset, Subset):
        return draws_nothing(dataset.dataset)
    # Of Hugging Face's datasets only those with a transform run any code of the user's.
    is_table = type(dataset).__module__.split(".")[0] == "datasets" and hasattr(dataset, "_format_type")
    return in_memory(dataset) or (is_table and dataset._format_type != "custom")


class Samples(Dataset[Any]):
    """The dataset that is handed to torch: the user's, with the random state set before each sample.

    It takes a whole batch's request at a time (``__getitems__``), because that is the only thing that reaches a
    worker which outlives an epoch, and so the only way to tell it which epoch it is.

    Args:
        dataset: The user's dataset.
        seed: Seed of the run.
        stacked: Whether to return the batch of a ``TensorDataset`` in one piece, as the default collation makes it.
    """

    def __init__(self, dataset: Any, *, seed: int, stacked: bool) -> None:
        self.dataset = dataset
        self._seed, self._stacked = seed, stacked
        self._draws = not draws_nothing(dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, request: Request) -> Any:
        """Return the samples of a batch."""
        epoch, indices = request
        if self._stacked:
            chosen = torch.tensor(indices)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        if not self._draws:
            several = getattr(self.dataset, "__getitems__", None)
            return several(indices) if several else [self.dataset[index] for index in indices]
        if get_worker_info() is not None:  # its random state is nobody else's
            return list(self._seeded(epoch, indices))
        with kept_state():
            return list(self._seeded(epoch, indices))

    def _seeded(self, epoch: int, indices: list[int]) -> Iterator[Any]:
        for index in indices:
            seed_all(derive("sample", self._seed, epoch, index))
            yield self.dataset[index]


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's (if it is in use) and torch's global generators; of torch's, that of the CPU."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def random_state() -> dict[str, Any]:
    """Return the state of the global generators, those that ``seed_all`` seeds."""
    numpy = sys.modules.get("numpy")
    state = {"python": random.getstate(), "torch": torch.default_generator.get_state()}
    return {**state, "numpy": numpy.random.get_state()} if numpy else state


def set_random_state(state: dict[str, Any]) -> None:
    """Set the global generators to a state that ``random_state`` returned."""
    random.setstate(state["python"])
    torch.default_generator.set_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy and "numpy" in state:
        numpy.random.set_state(state["numpy"])


@contextmanager
def kept_state() -> Iterator[None]:
    """Put the global random states back at the end, as if nothing had been drawn."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Seed the global generators for a while; afterwards they are as before."""
    with kept_state():
        seed_all(derive(*parts))
        yield


class WorkerStart:
    """What a worker does first: show the user's own dataset in ``get_worker_info``, and run their function."""

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        from torch.utils.data._utils import worker as loading

        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Samples):
            loading._worker_info = dataclasses.replace(info, dataset=info.dataset.dataset)
        if self._user is not None:
            self._user(worker)
