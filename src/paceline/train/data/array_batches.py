"""Batches of arrays for a loop without a session: the same order and random numbers as with one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from paceline.errors import UsageError, option_invalid
from paceline.train import runtime
from paceline.train.data.batch import moved
from paceline.train.data.order import StoredOrder, blocks, derive, shuffled
from paceline.train.data.share import LAST, EvenBatches, Shard

if TYPE_CHECKING:
    from paceline.train.data.array_dataset import ArrayDataset

_WHERE = "ArrayDataset.batches(...)"


class ArrayBatches:
    """This rank's batches of a dataset of arrays; each loop over it is the next epoch.

    The global batches are those of ``session.loader``, in the same order. Ranks get shares that
    differ by one row at most, and DistributedDataParallel averages their gradients with equal
    weight; ``session.backward`` would weight them by rows.

    Args:
        dataset: The arrays.
        batch_size: Samples in a batch, on all ranks together.
        shuffle: Whether each epoch has another order; default False.
        seed: Seed of the order and of the samples' random numbers; default 0.
        last: ``"exact"`` (default) yields a shorter last batch, ``"drop"`` leaves it out.
        device: Device of the batches, where they are transformed too; default the CPU.
        rank: This rank; default that of the process group, 0 without one.
        world_size: Number of ranks; default that of the process group, 1 without one.

    Raises:
        UsageError: An argument is invalid, or the last batch has fewer rows than there are ranks.
    """

    def __init__(
        self,
        dataset: ArrayDataset,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        last: str = "exact",
        device: torch.device | str = "cpu",
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.dataset, self._shuffle, self._seed = dataset, shuffle, seed
        self._rank = runtime.rank() if rank is None else rank
        self._world_size = runtime.num_ranks() if world_size is None else world_size
        self._batch_size, self._last, self._device = batch_size, last, torch.device(device)
        self._check_arguments()
        dataset.share_memory()
        self._next = self._position = (0, 0)  # epoch, and samples of it that were served before

    def __len__(self) -> int:
        """Number of batches in a whole epoch, the same on all ranks."""
        return len(self._batches(0))

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        """Yield the batches of the next epoch, or the rest of the checkpoint's epoch."""
        epoch, start = self._next
        self._next = (epoch + 1, 0)
        key = derive("arrays", self._seed, epoch)
        shard = Shard(self._batches(start), self._rank, self._world_size)
        raw = map(self.dataset.gather, blocks(self._order(epoch), shard.read()))
        for number, rows in enumerate(moved(raw, self._device)):
            batch = self.dataset.finish(rows, key)
            self._position = (epoch, shard.batches.span(number).stop)
            yield batch
        self._position = (epoch + 1, 0)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next loop at the start of an epoch; epochs also advance automatically."""
        self._next = self._position = (epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last batch: epoch and samples done, for any world size."""
        epoch, done = self._position
        return {"epoch": epoch, "done": done, "length": len(self.dataset)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position that ``state_dict`` returned.

        Raises:
            UsageError: The position is in an epoch of another number of samples.
        """
        if state["done"] and state["length"] != len(self.dataset):
            raise UsageError.of(
                "data-changed",
                f"the position is after {state['done']} of {state['length']} samples of an"
                f" epoch, and these arrays have {len(self.dataset)}",
                where="load_state_dict(...)",
                why="the remaining samples would differ from those that remained then",
                fix="train on the same data, or load a position at the end of an epoch",
            )
        self._next = self._position = (state["epoch"], state["done"])

    def _batches(self, start: int) -> EvenBatches:
        return EvenBatches(len(self.dataset), self._batch_size, self._last, start)

    def _order(self, epoch: int) -> Any:
        length = len(self.dataset)
        if self._shuffle:
            return shuffled(length, seed=self._seed, epoch=epoch)
        return StoredOrder(range(length))

    def _check_arguments(self) -> None:
        size = self._batch_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise _invalid(f"batch_size={size!r} is not a positive int")
        if self._last not in LAST:
            raise _invalid(f"last={self._last!r} is not one of {', '.join(LAST)}")
        if not 0 <= self._rank < self._world_size:
            raise _invalid(f"rank={self._rank} is not one of {self._world_size} ranks")
        rest = len(self.dataset) % self._batch_size
        smallest = rest if rest and self._last == "exact" else self._batch_size
        if smallest < self._world_size:
            raise UsageError.of(
                "rows-too-few",
                f"a batch has {smallest} rows for {self._world_size} ranks",
                where=_WHERE,
                why="a rank without a row cannot take part in averaging gradients",
                fix='batches(..., last="drop") with a batch size of at least the ranks; or'
                " session.loader(...), which gives such a rank a row without weight",
            )


def _invalid(what: str) -> UsageError:
    return option_invalid(what, where=_WHERE, fix="batches(batch_size=512)")
