"""Batches of a stream that divides itself among its workers, in an order of their number.

Each worker reads its own part only, so a stream that waits is faster with more workers. A batch has
samples of one worker, and workers take turns, as in torch's DataLoader. One batch is read ahead, to
know which is the last. A position is the number of samples that each worker has served.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.train.data.share import GivenBatches, Shard
from paceline.train.data.sources import Served, ShardOf, StreamBatches
from paceline.train.data.stream import Piece, Stream, with_end


@dataclass
class _Loop:
    """What one loop has served."""

    before: list[int]  # samples that each worker served before it
    turn: int  # worker whose batch is the first
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
        self.num_parts = max(1, options["settings"]["num_workers"])
        self._start: dict[str, Any] = {"workers": [0] * self.num_parts, "turn": 0}  # of an epoch
        self._restored = {"epoch": -1, "done": 0, **self._start}  # position of a checkpoint
        self._loop = self._training = _Loop([], 0, [0])  # the last ones
        super().__init__(*args, **options)

    def _stream_of(self, **shares: Any) -> Stream:
        return super()._stream_of(num_parts=self.num_parts, **shares)

    def mark(self) -> tuple[Any, ...]:
        """Return the values that must be equal on all ranks."""
        return *super().mark(), self.num_parts

    def place(self, epoch: int, done: int) -> dict[str, Any]:
        """Return the samples that each worker has served of an epoch, and whose turn it is."""
        if not done:
            return self._start
        if (epoch, done) == (self._restored["epoch"], self._restored["done"]):
            return {name: self._restored[name] for name in self._start}
        loop = self._training
        served, turn = list(loop.before), loop.turn
        for number in range(bisect.bisect_left(loop.ends, done)):
            worker = loop.workers[number]
            served[worker] += loop.ends[number + 1] - loop.ends[number]
            turn = (worker + 1) % self.num_parts
        return {"workers": served, "turn": turn}

    def return_to(self, place: dict[str, Any]) -> None:
        """Continue from a position; see ``BatchSource``."""
        super().return_to(place)
        self._restored = {"workers": [place["done"]], "turn": 0, **place}

    def _begin(self, epoch: int, start: int) -> tuple[ShardOf, Iterator[Served]]:
        place = self._restored if start else self._start
        loop = self._loop = _Loop(place["workers"], place["turn"], [start])
        if torch.is_grad_enabled():
            self._training = loop
        self._stream.parts[:] = torch.tensor(loop.before)
        self._stream.at[2] = loop.turn
        _, served = super()._begin(epoch, start)
        world = self._context.world
        shard = Shard(GivenBatches(loop.ends), world.rank, world.world_size)
        return (lambda _: shard) if self.has_position else None, served

    def _received(self) -> Iterator[Piece]:
        """Yield the pieces of all workers; only here it is known which is the last of all."""
        pieces = (piece for piece in super()._received() if piece.of_batch)
        return self._loop.noted(with_end(pieces))
