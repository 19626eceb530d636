"""Divide streams, which can only be read in sequence, by rank and worker.

A whole stream is the same on all ranks: each reader reads all of it and keeps its own rows, so that
batches equal those of a single rank. A sharded stream differs between ranks, and may end earlier on
some. For each batch its ranks exchange whether they have more. Of either, workers keep their own
batches, unless the stream divides itself among them; see ``worker_streams.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as loading

from paceline.errors import UsageError
from paceline.train.data.collation import Unit, collate_samples
from paceline.train.data.generator_states import (
    kept_state,
    random_state,
    seed_all,
    seeded,
    set_random_state,
)
from paceline.train.data.order import derive
from paceline.train.data.same_data_check import Mark, is_due, mark_of
from paceline.train.data.share import Rows, share

T = TypeVar("T")


class Piece(NamedTuple):
    """This rank's part of a batch."""

    rows: int  # samples of this rank; 0 if ``batch`` only shows the structure
    of_batch: int  # samples in the global batch; in this rank's if the stream is sharded
    is_last: bool  # whether the stream ends with it
    batch: Any  # the samples, later collated
    num_read: int = 1  # number of samples in ``batch``
    # digest of the whole batch; None for most batches, and for a sharded stream
    mark: Mark | None = None
    # rows or labels of the collated batch whose number per sample is not one
    unit: Unit | None = None
    worker: int = 0  # number of the worker that has read it


class Stream(IterableDataset[Piece]):
    """A stream in pieces, made in the worker that reads it."""

    def __init__(
        self,
        dataset: Any,  # the user's
        *,
        seed: int,
        batch_size: int,  # samples in a global batch; in a rank's if the stream is sharded
        last: str,  # "exact" or "drop"
        collate: Callable[[list[Any]], Any],  # of a list of samples
        rank: int,  # global; 0 if the stream is sharded
        world_size: int,  # 1 if the stream is sharded
        # the rank if the stream is sharded, so that ranks draw different numbers
        share_of_seed: int = 0,
        is_counted: bool = False,  # ``collate`` also returns the batch's unit
        is_compared: bool = False,  # ranks compare what they read
        num_parts: int = 0,  # workers among which the stream divides itself; 0 if it does not
    ) -> None:
        self.dataset = dataset
        self._is_counted, self._is_compared = is_counted, is_compared
        # Shared memory, because workers may outlive an epoch: the epoch's number, samples to skip,
        # and the worker that serves the first batch.
        self.at = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._seed, self._batch_size, self._last, self._collate = seed, batch_size, last, collate
        self._rank, self._world_size = rank, world_size
        self._share_of_seed = share_of_seed
        # number of the worker that reads the stream, and the number of workers
        self.worker = (0, 1)
        self.is_divided = num_parts > 0
        # samples that each worker has served, if the stream divides itself among them
        self.parts = torch.zeros(num_parts, dtype=torch.int64).share_memory_()

    def _kept(self) -> tuple[int, int]:
        """Return which of its batches a worker keeps: the first, and one in how many."""
        return (0, 1) if self.is_divided else self.worker

    def __iter__(self) -> Iterator[Piece]:
        epoch, skip, _ = self.at.tolist()
        seed = derive("stream", self._seed, epoch, self._share_of_seed)
        part, _ = self.worker
        if self.is_divided:
            skip = int(self.parts[part])
            seed = derive("part", seed, part)
        pieces = self._pieces(epoch, skip)
        if get_worker_info() is None:
            pieces = _undisturbed(pieces, seed)
        else:  # a worker's random state is not shared
            seed_all(seed)
        return self._collated(pieces, skip, seed)

    def _collated(self, pieces: Iterator[Piece], skip: int, seed: int) -> Iterator[Piece]:
        """Collate each piece with a separate random state.

        Ranks collate different rows, and workers different batches. Random numbers drawn for them
        must not advance the generators that the stream itself uses, or ranks would read different
        streams.
        """
        worker, _ = self.worker
        first, stride = self._kept()
        if worker < self.at[2]:
            yield Piece(0, 0, False, None, 0)  # torch begins with worker 0, whose turn is later
        for number, piece in enumerate(pieces if self.is_divided else _unseen_worker(pieces)):
            if self._collate is collate_samples:  # draws no random numbers
                batch = collate_samples(piece.batch)
            else:
                place = skip + (number * stride + first) * self._batch_size
                with seeded("collate", seed, place, self._rank):
                    batch = self._collate(piece.batch)
            batch, unit = batch if self._is_counted else (batch, None)
            yield piece._replace(batch=batch, unit=unit, worker=worker)

    def _pieces(self, epoch: int, skip: int) -> Iterator[Piece]:
        first, stride = self._kept()
        if callable(getattr(self.dataset, "set_epoch", None)):
            self.dataset.set_epoch(epoch)
        batches = _grouped(itertools.islice(iter(self.dataset), skip, None), self._batch_size)
        if self._last == "drop":
            batches = (batch for batch in batches if len(batch) == self._batch_size)
        for number, (samples, is_last) in enumerate(with_end(batches)):
            if number % stride == first:
                mine = share(len(samples), rank=self._rank, world_size=self._world_size)
                read = samples[mine.start : mine.stop] or samples[:1]
                mark = mark_of(samples) if self._is_compared and is_due(number) else None
                yield Piece(len(mine), len(samples), is_last, read, len(read), mark)


def _unseen_worker(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Read as if in the main process: libraries order or divide a stream by its worker.

    For example, Hugging Face's streams have another order in a worker. The number of CPUs of a
    rank, which decides whether it has workers, would change the order.
    """
    info = loading._worker_info
    while True:
        loading._worker_info = None
        try:
            piece = next(pieces, None)
        finally:
            loading._worker_info = info  # torch's collate function needs it to use shared memory
        if piece is None:
            return
        yield piece


def _undisturbed(pieces: Iterator[Piece], seed: int) -> Iterator[Piece]:
    """Read with a separate random state, in the process that trains."""
    own: dict[str, Any] = {}
    while True:
        with kept_state():
            if own:
                set_random_state(own)
            else:
                seed_all(seed)
            piece = next(pieces, None)
            own = random_state()
        if piece is None:
            return
        yield piece


def _grouped(stream: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(stream, size)):
        yield batch


def with_end(batches: Iterator[T]) -> Iterator[tuple[T, bool]]:
    """Yield each batch and whether it is the last, reading one batch ahead."""
    before = next(batches, None)
    while before is not None:
        coming = next(batches, None)
        yield before, coming is None
        before = coming


def whole_rows(piece: Piece, number: int, accumulate: int) -> Rows:
    """Return the rows of a batch of a whole stream; a group's size is only known at its end."""
    ends_group = piece.is_last or (number + 1) % accumulate == 0
    of_group = piece.of_batch if accumulate == 1 else None
    return Rows(piece.rows, piece.of_batch, of_group, ends_group, piece.num_read)


def pieces_of_all(
    pieces: Iterator[Piece], agree: Callable[[list[int]], list[int]]
) -> Iterator[tuple[Piece, int, bool]]:
    """Yield a rank's pieces until all ranks' streams have ended; an ended one repeats without rows.

    Each comes with the samples in all ranks' pieces, and whether it is the last on all ranks.
    ``agree`` returns the sums of a list of ints over all ranks.
    """
    piece = next(pieces, None)
    (num_empty,) = agree([piece is None])
    if piece is None or num_empty:
        raise _empty_stream(num_empty)
    while True:
        rows, num_unfinished = agree([piece.rows, not piece.is_last])
        yield piece, rows, num_unfinished == 0
        if num_unfinished == 0:
            return
        coming = None if piece.is_last else next(pieces, None)
        if coming is None and piece.rows:
            coming = piece._replace(rows=0, is_last=True, unit=None)
        piece = piece if coming is None else coming


def _empty_stream(num_empty: int) -> UsageError:
    return UsageError.of(
        "data-not-shardable",
        f"the sharded stream yields nothing on {num_empty} rank{'s' * (num_empty != 1)}",
        where="session.loader(stream, sharded=True)",
        why="a rank without any sample cannot know what a batch looks like",
        fix="give each rank at least one sample, or pass the whole stream with sharded=False",
    )
