"""Who gets which sample: pure functions of length, batch size, seed, epoch and rank.

The order of an epoch depends on seed and epoch alone. A global batch is a slice of that order, and a rank's
share is a slice of the batch, so that the number of ranks never changes what a step sees.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass

import torch


def epoch_order(length: int, *, seed: int, epoch: int) -> array[int]:
    """Return the order of the samples in an epoch.

    Args:
        length: Number of samples.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.

    Returns:
        A permutation of ``0 .. length - 1``, 8 bytes a sample. Not a tensor: slices of it become lists of
        indices at every step, which costs a tensor ten times as much.
    """
    # Hashed, so that neighbouring seeds and epochs share nothing (seed + epoch would repeat orders).
    digest = hashlib.blake2b(f"order {seed} {epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    order = array("q", [0]) * length
    if length:  # torch writes into the array's memory, and takes no empty one
        torch.randperm(length, generator=generator, out=torch.frombuffer(order, dtype=torch.int64))
    return order


def share(num_rows: int, *, rank: int, world_size: int) -> range:
    """Return which rows of a batch a rank gets.

    The shares are contiguous and in the order of ranks; their sizes differ by at most one, larger ones first.
    """
    size, extra = divmod(num_rows, world_size)
    start = rank * size + min(rank, extra)
    return range(start, start + size + (rank < extra))


@dataclass(frozen=True)
class Shard:
    """How one rank takes part in the batches of an epoch.

    Attributes:
        length: Number of samples of the dataset.
        batch_size: Samples of a global batch; the last one may be shorter.
        rank: Rank.
        world_size: Number of ranks.
    """

    length: int
    batch_size: int
    rank: int
    world_size: int

    @property
    def num_batches(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return -(-self.length // self.batch_size)

    def rows_of_batch(self, batch: int) -> int:
        """Return the number of samples in a global batch."""
        return min(self.batch_size, self.length - batch * self.batch_size)

    def positions(self, batch: int) -> range:
        """Return the positions in the epoch's order that are this rank's share of a batch; may be empty."""
        start = batch * self.batch_size
        rows = share(self.rows_of_batch(batch), rank=self.rank, world_size=self.world_size)
        return range(start + rows.start, start + rows.stop)
