"""Batches of a stream that divides itself among its workers, in an order of their number.

Each worker reads its own part only, so a stream that waits is faster with more workers. A batch has
samples of one worker, and workers take turns, as in torch's DataLoader. A position is the number of
samples that each worker has served.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import torch

from paceline.errors import UsageError
from paceline.train.data.loader_options import contradiction
from paceline.train.data.share import GivenBatches, Shard
from paceline.train.data.sources import Served, ShardOf, StreamBatches
from paceline.train.data.stream import Piece, Stream, with_end


class WorkerStreamBatches(StreamBatches):
    """Batches of a stream that divides itself among workers; ``settings["num_workers"]`` of them.

    Raises UsageError as ``StreamBatches`` does, or if the number of workers was not given.
    """

    def __init__(self, *args: Any, is_number_given: bool, **options: Any) -> None:
        if not is_number_given:
            raise contradiction(
                "sharded_by_worker=True needs num_workers=, on which the order depends"
            )
        self._num_parts = max(1, options["settings"]["num_workers"])
        # Of the epoch under way: samples served up to each batch, and the worker of each batch.
        self._ends: list[int] = [0]
        self._workers: list[int] = []
        self._before = [0] * self._num_parts  # samples that each worker served before
        self._restored: list[int] | None = None  # of a checkpoint in the middle of an epoch
        super().__init__(*args, **options)

    def _stream_of(self, **shares: Any) -> Stream:
        return super()._stream_of(num_parts=self._num_parts, **shares)

    def mark(self) -> tuple[Any, ...]:
        """Return the values that must be equal on all ranks."""
        return *super().mark(), self._num_parts

    def place(self, done: int) -> dict[str, Any]:
        """Return the samples that each worker served until ``done`` samples of the epoch."""
        if not done:
            return {"workers": [0] * self._num_parts}
        if self._restored is not None:
            return {"workers": self._restored}
        served = list(self._before)
        for number in range(bisect.bisect_left(self._ends, done)):
            served[self._workers[number]] += self._ends[number + 1] - self._ends[number]
        return {"workers": served}

    def return_to(self, place: dict[str, Any]) -> None:
        """Continue from a position that another loader returned.

        Raises UsageError if that one had another number of workers.
        """
        workers = place.get("workers")
        if workers is None and not place["done"]:
            return
        number = len(workers or [0])
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
        self._restored = workers if place["done"] else None

    def _begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        restored = (self._restored if start else None) or [0] * self._num_parts
        self._restored = None
        self._before, self._ends, self._workers = restored, [start], []
        self._stream.parts[:] = torch.tensor(restored)
        _, served = super()._begin(epoch, start)
        world = self._context.world

        def shard(end: int) -> Shard:
            bounds = self._ends[: bisect.bisect_left(self._ends, end) + 1]
            return Shard(GivenBatches(bounds), world.rank, world.world_size)

        return shard if self.has_position else None, served

    def _received(self) -> Iterator[Piece]:
        """Yield the pieces of all workers; only here it is known which is the last of all."""
        pieces = (piece for piece in super()._received() if piece.of_batch)
        for piece, is_last in with_end(pieces):
            self._ends.append(self._ends[-1] + piece.of_batch)
            self._workers.append(piece.worker)
            yield piece._replace(is_last=is_last)
