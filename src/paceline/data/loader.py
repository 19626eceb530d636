"""The loader: batches of a map-style dataset on the device, shared out exactly among the ranks.

Built on torch's DataLoader, which gets our list of indices for each batch and does the rest.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.data.shard import Shard, epoch_order
from paceline.errors import Finding, UsageError
from paceline.world import World


class Rows(NamedTuple):
    """Numbers of samples in a batch.

    Attributes:
        of_rank: Samples of this rank; may be 0.
        of_batch: Samples of the global batch.
    """

    of_rank: int
    of_batch: int


@dataclass(eq=False, slots=True)
class Iteration:
    """One run through a loader, as the tally knows it.

    Attributes:
        rows: Those of the batch yielded last.
        num_batches: Batches yielded since the last backward.
        with_grad: Whether the last one was fetched with autograd enabled.
        live: Whether the loop over the loader goes on.
    """

    rows: Rows | None = None
    num_batches: int = 0
    with_grad: bool = True
    live: bool = True


class Tally:
    """Which batch the next backward belongs to; shared by the loaders of a session.

    A loop over a loader takes down each batch that it yields, and is no longer live when it ends: at the last
    batch, or by ``break``, which closes the loader's generator at once. An evaluation loop between two training
    batches has therefore ended by the time of the next backward.
    """

    def __init__(self) -> None:
        self._iterations: list[Iteration] = []
        self._rows: Rows | None = None

    def open(self) -> Iteration:
        """Return the record of a loop that begins."""
        self._iterations = [each for each in self._iterations if each.live or each.num_batches]
        self._iterations.append(Iteration())
        return self._iterations[-1]

    def take(self) -> Rows | None:
        """Return the rows of the batch that a backward now belongs to, and start anew.

        Returns:
            Those of the batch yielded since the last call; if there was none, those of the last call again (a
            second loss of the same batch); None if nothing was ever yielded.

        Raises:
            UsageError: Several batches come into question.
        """
        since = [each for each in self._iterations if each.num_batches]
        if not since:
            return self._rows
        chosen = since[0] if len(since) == 1 and since[0].live else _choose(since)
        for each in since:
            each.num_batches = 0
        if chosen is not None:
            self._rows = chosen.rows
        return self._rows


def _choose(since: list[Iteration]) -> Iteration | None:
    """Return which of the loops that yielded a batch the loss is from; None if all were evaluations."""
    live = [each for each in since if each.live]
    if len(live) == 1:
        return live[0]
    found = [each for each in live or since if each.with_grad]  # under no_grad evaluations advance
    if not live and not found:
        return None
    if len(found) != 1:
        raise _unknown_weight(
            f"{len(since)} loaders yielded a batch since the last backward",
            fix="call session.backward on each batch's loss before taking the next (gradients add up)",
        )
    (one,) = found
    if not one.live and one.num_batches > 1:
        raise _unknown_weight(
            f"a loader yielded {one.num_batches} batches since the last backward, and was left",
            fix="call session.backward inside the loop over the loader; evaluate under torch.no_grad()",
        )
    return one


def _unknown_weight(what: str, *, fix: str) -> UsageError:
    return UsageError(
        Finding(
            "batch-weight-unknown",
            f"{what}, so the batch of this loss is not known",
            where="session.backward(loss)",
            why="a rank's loss is weighted by its share of the batch; a wrong weight would change the result "
            "with the number of ranks",
            fix=fix,
        )
    )


class _Indices:
    """The batch sampler handed to torch: lists of indices, this rank's share of each batch."""

    def __init__(self, shard: Shard, *, shuffle: bool, seed: int) -> None:
        self.epoch = 0
        self._shard, self._shuffle, self._seed = shard, shuffle, seed

    def __len__(self) -> int:
        return self._shard.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        shard = self._shard
        order: array[int] | range = range(shard.length)
        if self._shuffle:
            order = epoch_order(shard.length, seed=self._seed, epoch=self.epoch)
        # All batches but the last are alike, so that a step only slices. A rank without a sample borrows the
        # batch's first, for the structure of its empty batch.
        mine = shard.positions(0) or range(1)
        first, stop, last = mine.start, mine.stop, (shard.num_batches - 1) * shard.batch_size
        for start in range(0, last, shard.batch_size):
            yield list(order[start + first : start + stop])
        if shard.length:
            mine = shard.positions(shard.num_batches - 1) or range(last, last + 1)
            yield list(order[mine.start : mine.stop])


class Loader:
    """Batches of a dataset on this rank's device; every sample exactly once per epoch at any world size.

    Iterate it once for each epoch: it reshuffles by itself, in an order that depends on seed and epoch alone.
    Without ``shuffle`` the order is that of the dataset. All ranks get the same number of batches; where a
    global batch has fewer samples than ranks, some get a batch of zero rows: every tensor in it has shape
    ``[0, ...]``, every list of plain values is empty, and other objects are those of a real sample. A mean
    over such a batch is NaN in value (its gradient is not); sums are 0.

    Args:
        dataset: A map-style dataset: ``__len__`` and ``__getitem__`` (``__getitems__`` is used if there).
        batch_size: Samples of a global batch, summed over ranks. This or the next is needed.
        per_rank_batch_size: Samples of a rank in each full batch.
        shuffle: Whether to reorder the samples in each epoch.
        seed: Seed of the order.
        world: The ranks.
        device: Where batches are moved to; those on the CPU stay as the workers made them.
        tally: Where each loop takes down the batches that it yields.
        num_workers: As torch's DataLoader has it, and so the next ones: processes that load.
        collate_fn: Makes a batch of a list of samples; torch's default if None.
        pin_memory: Whether batches are copied to pinned memory first.
        persistent_workers: Whether workers outlive an epoch.
        prefetch_factor: Batches that each worker loads ahead.

    Raises:
        UsageError: The dataset cannot be shared out, a batch size is bad, or options exclude each other.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        per_rank_batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        world: World,
        device: torch.device,
        tally: Tally,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
    ) -> None:
        _check_dataset(dataset)
        self.dataset = dataset
        self.batch_size = _global_batch_size(batch_size, per_rank_batch_size, world.world_size)
        self._device, self._tally = device, tally
        self._epoch = 0
        self._shard = Shard(len(dataset), self.batch_size, world.rank, world.world_size)
        self._indices = _Indices(self._shard, shuffle=shuffle, seed=seed)
        try:
            self._batches: DataLoader[Any] = DataLoader(
                dataset,
                batch_sampler=self._indices,
                num_workers=num_workers,
                collate_fn=collate_fn,
                pin_memory=pin_memory,
                persistent_workers=persistent_workers,
                prefetch_factor=prefetch_factor,
            )
        except ValueError as error:
            raise UsageError(Finding("option-contradicted", str(error), where="session.loader(...)")) from None

    def __len__(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return self._shard.num_batches

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch."""
        self._indices.epoch = self._epoch
        self._epoch += 1
        iteration = self._tally.open()
        rows, num_left, on_cpu = self._rows(0), len(self), self._device.type == "cpu"
        try:
            for loaded in self._batches:
                num_left -= 1
                if num_left == 0:
                    rows = self._rows(len(self) - 1)
                batch = loaded if rows.of_rank else without_rows(loaded)
                if not on_cpu:
                    batch = to_device(batch, self._device)
                iteration.rows = rows
                iteration.num_batches += 1
                iteration.with_grad = torch.is_grad_enabled()
                yield batch
        finally:
            iteration.live = False

    def _rows(self, batch: int) -> Rows:
        return Rows(len(self._shard.positions(batch)), self._shard.rows_of_batch(batch))


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all that can be moved on ``device``; nested dicts, lists and tuples are kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):  # a packed sequence, a tokenizer's encoding
        return batch.to(device)
    return _rebuilt(batch, lambda part: to_device(part, device))


def without_rows(batch: Any) -> Any:
    """Return a batch of the same structure with zero rows."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, list | tuple) and all(isinstance(part, str | bytes | int | float) for part in batch):
        return batch[:0]  # one plain value for each sample
    return _rebuilt(batch, without_rows)


def _rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a container with ``function`` applied to its parts; anything else as it is."""
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps the type and what else it holds
        clone.update({key: function(part) for key, part in batch.items()})
        return clone
    if isinstance(batch, Mapping):
        return {key: function(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(function, batch))
    return batch


def _global_batch_size(batch_size: int | None, per_rank: int | None, world_size: int) -> int:
    if (batch_size is None) == (per_rank is None):
        raise UsageError(
            Finding(
                "option-contradicted",
                "batch_size and per_rank_batch_size "
                + ("are both given" if batch_size is not None else "are both missing")
                + ": exactly one is needed",
                where="session.loader(...)",
                fix="session.loader(dataset, batch_size=64): samples of a step, all ranks together",
            )
        )
    name, value = ("batch_size", batch_size) if per_rank is None else ("per_rank_batch_size", per_rank)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(
            Finding(
                "option-invalid",
                f"{name}={value!r} is not a positive int",
                where="session.loader(...)",
                fix=f"session.loader(dataset, {name}=64)",
            )
        )
    return value if per_rank is None else value * world_size


def _check_dataset(dataset: Any) -> None:
    if isinstance(dataset, DataLoader):
        what = "a DataLoader has its own batches, which cannot be shared out again"
        fix = "session.loader(your_loader.dataset, batch_size=..., shuffle=...)"
    elif isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        what = f"{type(dataset).__name__} can only be read in sequence, so that ranks cannot share it out"
        fix = "session.loader(list(dataset), batch_size=...), or write a Dataset with __len__ and __getitem__"
    elif not hasattr(dataset, "__len__"):
        what = f"{type(dataset).__name__} has no length"
        fix = "def __len__(self): return number_of_samples"
    else:
        return
    raise UsageError(
        Finding(
            "data-not-shardable",
            what,
            where="session.loader(dataset)",
            why="every rank would see all samples, or none would know which are its own",
            fix=fix,
        )
    )
