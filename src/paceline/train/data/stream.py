"""Streams: datasets that can only be read in sequence, shared out by (rank, worker).

A whole stream is the same on all ranks: each reader goes through all of it and keeps the rows that are its own,
so that batches are those of a single rank. A sharded stream is another one on each rank, and may end earlier
there than elsewhere; its ranks tell each other at each batch what they have left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils import worker as loading

from paceline.errors import Finding, UsageError
from paceline.train.data.collated import Unit
from paceline.train.data.likeness import Mark, is_due, mark_of
from paceline.train.data.order import derive
from paceline.train.data.samples import kept_state, random_state, seed_all, seeded, set_random_state
from paceline.train.data.shard import Rows, share


class Piece(NamedTuple):
    """This rank's part of a batch.

    Attributes:
        rows: Samples of it that are this rank's; 0 if ``batch`` only shows the structure.
        of_batch: Samples of the global batch, or of this rank's own if the stream is sharded.
        is_last: Whether the stream ends with it.
        batch: The samples, collated in the end.
        shown: How many samples ``batch`` is made of.
        mark: What was read of the whole batch, in short; None for most batches, and of a sharded stream.
        unit: What of the collated batch is not one a sample.
    """

    rows: int
    of_batch: int
    is_last: bool
    batch: Any
    shown: int = 1
    mark: Mark | None = None
    unit: Unit | None = None


class Stream(IterableDataset[Piece]):
    """A stream in pieces, made in the worker that reads it.

    Args:
        dataset: The user's stream of samples.
        seed: Seed of the run.
        batch_size: Samples of a global batch, or of a rank's if the stream is sharded.
        last: ``"exact"`` or ``"drop"``.
        collate: Makes a batch of a list of samples.
        is_counted: Whether ``collate`` returns what is not one a sample, too.
        is_compared: Whether ranks compare what they read.
        rank: This rank; 0 of 1 if the stream is sharded.
        world_size: Number of ranks.
        share_of_seed: The rank, where each rank reads something else and so draws something else.

    Attributes:
        worker: Number of the worker that reads it, and of how many.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        batch_size: int,
        last: str,
        collate: Callable[[list[Any]], Any],
        rank: int,
        world_size: int,
        share_of_seed: int = 0,
        is_counted: bool = False,
        is_compared: bool = False,
    ) -> None:
        self.dataset = dataset
        self._is_counted, self._is_compared = is_counted, is_compared
        # Shared memory, because workers may outlive an epoch: its number, and the samples to skip.
        self.at = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._seed, self._batch_size, self._last, self._collate = seed, batch_size, last, collate
        self._rank, self._world_size = rank, world_size
        self._share_of_seed = share_of_seed
        self.worker = (0, 1)

    def __iter__(self) -> Iterator[Piece]:
        epoch, skip = self.at.tolist()
        seed = derive("stream", self._seed, epoch, self._share_of_seed)
        pieces = self._pieces(epoch, skip)
        if get_worker_info() is None:
            pieces = _undisturbed(pieces, seed)
        else:  # a worker's random state is nobody else's
            seed_all(seed)
        return self._collated(pieces, skip, seed)

    def _collated(self, pieces: Iterator[Piece], skip: int, seed: int) -> Iterator[Piece]:
        """Collate each piece with a random state of its own.

        Ranks collate different rows, and workers different batches: what is drawn for them must not move the
        generators that the stream itself draws from, or they would read different streams.
        """
        worker, num_workers = self.worker
        for number, piece in enumerate(_unseen_worker(pieces)):
            if self._collate is default_collate:  # draws nothing
                batch = default_collate(piece.batch)
            else:
                place = skip + (number * num_workers + worker) * self._batch_size
                with seeded("collate", seed, place, self._rank):
                    batch = self._collate(piece.batch)
            batch, unit = batch if self._is_counted else (batch, None)
            yield piece._replace(batch=batch, unit=unit)

    def _pieces(self, epoch: int, skip: int) -> Iterator[Piece]:
        worker, num_workers = self.worker
        if callable(getattr(self.dataset, "set_epoch", None)):
            self.dataset.set_epoch(epoch)
        batches = _grouped(itertools.islice(iter(self.dataset), skip, None), self._batch_size)
        if self._last == "drop":
            batches = (batch for batch in batches if len(batch) == self._batch_size)
        for number, (samples, is_last) in enumerate(_with_end(batches)):
            if number % num_workers == worker:
                mine = share(len(samples), rank=self._rank, world_size=self._world_size)
                shown = samples[mine.start : mine.stop] or samples[:1]
                mark = mark_of(samples) if self._is_compared and is_due(number) else None
                yield Piece(len(mine), len(samples), is_last, shown, len(shown), mark)


def _unseen_worker(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Read as if in the main process: libraries order a stream by the worker that reads it, or share it out.

    Hugging Face's streams, for one, come in another order in a worker than without any, so that the CPUs of a rank,
    which decide about its workers, would decide about the order.
    """
    info = loading._worker_info
    while True:
        loading._worker_info = None
        try:
            piece = next(pieces, None)
        finally:
            loading._worker_info = info  # torch's collation asks for it, to collate into shared memory
        if piece is None:
            return
        yield piece


def _undisturbed(pieces: Iterator[Piece], seed: int) -> Iterator[Piece]:
    """Read with a random state of its own, in a process whose random state is the training's."""
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


def _with_end(batches: Iterator[list[Any]]) -> Iterator[tuple[list[Any], bool]]:
    """Yield each batch with whether it is the last, which takes one of reading ahead."""
    before = next(batches, None)
    while before is not None:
        coming = next(batches, None)
        yield before, coming is None
        before = coming


def whole_rows(piece: Piece, number: int, accumulate: int) -> Rows:
    """Return the rows of a batch of a whole stream; the size of a group is known at its end only."""
    ends_group = piece.is_last or (number + 1) % accumulate == 0
    of_group = piece.of_batch if accumulate == 1 else None
    return Rows(piece.rows, piece.of_batch, of_group, ends_group, piece.shown)


def met_pieces(pieces: Iterator[Piece], agree: Callable[[list[int]], list[int]]) -> Iterator[tuple[Piece, int, bool]]:
    """Yield a rank's pieces until all ranks are through with theirs; one without any more keeps its last, of no rows.

    Args:
        pieces: The pieces of this rank's own stream.
        agree: Returns the sums of a list of ints over all ranks.

    Yields:
        A piece, the samples of all ranks' pieces, and whether no rank has any more.
    """
    piece = next(pieces, None)
    (num_empty,) = agree([piece is None])
    if piece is None or num_empty:
        raise _empty_stream(num_empty)
    while True:
        rows, num_left = agree([piece.rows, not piece.is_last])
        yield piece, rows, num_left == 0
        if num_left == 0:
            return
        coming = None if piece.is_last else next(pieces, None)
        if coming is None and piece.rows:
            coming = piece._replace(rows=0, is_last=True, unit=None)
        piece = piece if coming is None else coming


def _empty_stream(num_empty: int) -> UsageError:
    return UsageError(
        Finding(
            "data-not-shardable",
            f"the sharded stream yields nothing on {num_empty} rank{'s' * (num_empty != 1)}",
            where="session.loader(stream, sharded=True)",
            why="a rank without any sample cannot know what a batch looks like",
            fix="give each rank at least one sample, or hand over the whole stream with sharded=False",
        )
    )
