"""Batches of a stream that divides itself among its workers, in an order of their number.

Each worker reads its own part only, so a stream that waits is faster with more workers. A batch has
samples of one worker, and workers take turns, as in torch's DataLoader. A position is the number of
samples that each worker has served.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.train.data.share import GivenBatches, Shard
from paceline.train.data.sources import Served, ShardOf, StreamBatches
from paceline.train.data.stream import Piece, Stream, with_end


@dataclass
class _Loop:
    """What one loop has served."""

    before: list[int]  # samples that each worker served before it
    ends: list[int]  # samples of the epoch up to each batch, from before the first one
    workers: list[int] = field(default_factory=list)  # worker of each batch

    def noted(self, pieces: Iterator[tuple[Piece, bool]]) -> Iterator[Piece]:
        """Yield pieces, each with whether it is the last."""
        for piece, is_last in pieces:
            self.ends.append(self.ends[-1] + piece.of_batch)
            self.workers.append(piece.worker)
            yield piece._replace(is_last=is_last)


class WorkerStreamBatches(StreamBatches):
    """Batches of a stream that divides itself among workers; otherwise as ``StreamBatches``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._num_parts = max(1, options["settings"]["num_workers"])
        self._none_served = [0] * self._num_parts  # samples of each worker at the start of an epoch
        self._loop = self._training = _Loop(self._none_served, [0])  # the last loops
        # epoch, samples done, and those of each worker, of a checkpoint in the middle of an epoch
        self._restored = (-1, 0, self._none_served)
        super().__init__(*args, **options)

    def _stream_of(self, **shares: Any) -> Stream:
        return super()._stream_of(num_parts=self._num_parts, **shares)

    def mark(self) -> tuple[Any, ...]:
        """Return the values that must be equal on all ranks."""
        return *super().mark(), self._num_parts

    def place(self, epoch: int, done: int) -> dict[str, Any]:
        """Return the samples that each worker served until ``done`` samples of an epoch."""
        if not done:
            return {"workers": self._none_served}
        if (epoch, done) == self._restored[:2]:
            return {"workers": self._restored[2]}
        loop = self._training
        served = list(loop.before)
        for number in range(bisect.bisect_left(loop.ends, done)):
            served[loop.workers[number]] += loop.ends[number + 1] - loop.ends[number]
        return {"workers": served}

    def return_to(self, place: dict[str, Any]) -> None:
        """Continue from a position that another loader returned.

        Raises UsageError if that one had another number of workers.
        """
        if "workers" not in place and not place["done"]:
            return
        workers = place.get("workers", [place["done"]])
        number = len(workers)
        if number != self._num_parts:
            raise UsageError.of(
                "data-changed",
                f"the checkpoint was made with {number} worker{'s' * (number != 1)} a rank, and"
                f" this loader has {self._num_parts}",
                where="session.restore(...)",
                why="the order of a stream that divides itself among workers depends on their"
                " number",
                fix=f"session.loader(..., num_workers={number}, sharded_by_worker=True)",
            )
        if place["done"]:
            self._restored = (place["epoch"], place["done"], workers)

    def _begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        loop = _Loop(self._restored[2] if start else self._none_served, [start])
        self._loop = loop
        if torch.is_grad_enabled():
            self._training = loop
        self._stream.parts[:] = torch.tensor(loop.before)
        _, served = super()._begin(epoch, start)
        world = self._context.world

        def shard(end: int) -> Shard:
            bounds = loop.ends[: bisect.bisect_left(loop.ends, end) + 1]
            return Shard(GivenBatches(bounds), world.rank, world.world_size)

        return shard if self.has_position else None, served

    def _received(self) -> Iterator[Piece]:
        """Yield the pieces of all workers; only here it is known which is the last of all."""
        pieces = (piece for piece in super()._received() if piece.of_batch)
        return self._loop.noted(with_end(pieces))
