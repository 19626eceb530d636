"""The loader: batches on the device, shared out exactly among the ranks.

Built on torch's DataLoader, which gets our list of indices for each batch and does the rest.
"""

from __future__ import annotations

import bisect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from paceline.errors import Finding, UsageError, closest
from paceline.train.data import absent
from paceline.train.data.adopt import check_dataset, check_library, check_sampler, check_stream, fingerprint
from paceline.train.data.arguments import check_options, contradiction, global_batch_size
from paceline.train.data.batch import can_be_emptied, moved_ahead, to_device
from paceline.train.data.changes import state_of
from paceline.train.data.collated import Units, as_it_is
from paceline.train.data.draws import Draws
from paceline.train.data.leaving import release_at_exit
from paceline.train.data.likeness import Likeness
from paceline.train.data.order import Order, StoredOrder, blocks, derive, shuffled
from paceline.train.data.samples import Request, Samples, WorkerStart, in_memory, takes_batches
from paceline.train.data.shard import EvenBatches, GivenBatches, Rows, Shard
from paceline.train.data.stream import Piece, Stream, met_pieces, whole_rows
from paceline.train.data.surroundings import Surroundings
from paceline.train.data.tally import Iteration
from paceline.train.data.tune import Loading, choose

# Arguments that torch's DataLoader takes as they are.
_OF_WORKERS = ("timeout", "multiprocessing_context", "persistent_workers", "prefetch_factor")
_HANDED_ON = ("pin_memory", *_OF_WORKERS)

# Rows of a batch, the batch, and why its rows are not its weight (empty where they are).
Served = tuple[Rows, Any, str]


class Loader:
    """Batches of a dataset on this rank's device; every sample exactly once per epoch at any world size.

    Iterate it once for each epoch: it reshuffles by itself, in an order that depends on seed and epoch alone.
    Where a global batch has fewer samples than ranks, some ranks have no row of it. In training such a rank gets a
    row of another rank, and ``rows`` is 0: ``Session.backward`` counts it zero times, ``Session.gather`` leaves it out.
    An evaluation leaves the batch out on that rank, or hands it over with zero rows where the body of the loop calls
    other ranks; see docs/guides/data.md.

    ``Session.loader`` makes it and documents the arguments.

    Attributes:
        takes_any: Whether the caller leaves out of its results what has no ``rows``. A rank without a row then gets
            one of another rank in an evaluation too, where every forward needs all ranks.
    """

    def __init__(
        self,
        dataset: Any,
        around: Surroundings,
        *,
        batch_size: int | None = None,
        per_rank_batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        last: str = "exact",
        sharded: bool | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        **options: Any,
    ) -> None:
        check_dataset(dataset)
        self.dataset = dataset
        self._units = Units(around.first_of, matter=around.world.world_size > 1 or around.accumulate > 1)
        self._likeness = Likeness(
            around.first_of, around.total, world=around.world, name=type(dataset).__name__, alike=not sharded
        )
        self.reason = ""  # of the settings that were chosen; empty if none was
        self._around, self._epoch, self._start = around, 0, 0
        self.iteration: Iteration | None = None  # the last loop over it
        self._iteration: Iteration | None = None  # the last one with autograd
        self._iterated = 0  # its epoch
        self.takes_any = False
        self._is_few = False  # whether the last batch had one row or none here
        self._meets = False  # whether the body of a loop over it has called other ranks
        self._state_of_dataset: Any = None  # when the workers got it
        self._trains = False  # whether a loop before the last one had a backward
        self.training_loops = 0  # that have begun
        is_stream = isinstance(dataset, IterableDataset)
        check_options(
            is_stream, shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler, last=last, sharded=sharded
        )
        if batch_sampler is None:
            size = global_batch_size(batch_size, per_rank_batch_size, around.world.world_size)
        elif batch_size is None and per_rank_batch_size is None and not shuffle and sampler is None:
            size = 0
        else:
            raise contradiction("a batch_sampler decides batch size and order by itself")
        self.batch_size = size
        self._last, self._sharded, self._shuffle = last, bool(sharded), shuffle
        self._sampler = batch_sampler if batch_sampler is not None else sampler
        check_sampler(self._sampler)
        self._draws = Draws(self._sampler, around.seed)
        settings = self._settings(num_workers, options, is_stream=is_stream)
        settings["worker_init_fn"] = WorkerStart(worker_init_fn)
        # Its own generator, because torch would draw a seed for the workers from the global one at each epoch.
        settings["generator"] = torch.Generator().manual_seed(derive("workers", around.seed))
        try:
            if is_stream:
                if sharded is None:
                    check_stream(dataset)
                    check_library(dataset, world_size=around.world.world_size)
                self._make_stream(collate_fn, settings)
            else:
                self._make_samples(collate_fn, settings)
        except ValueError as error:
            raise contradiction(str(error)) from None

    def __len__(self) -> int:
        """Number of batches of a whole epoch, the same on all ranks.

        Raises:
            TypeError: Of a stream it is not known.
        """
        if isinstance(self.dataset, IterableDataset):
            raise TypeError(f"the length of {type(self.dataset).__name__} is not known before it is read")
        if not self.batch_size:
            return len(self._sampler)
        return len(EvenBatches(self._length(), self.batch_size, self._last))

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, or what is left of one that a checkpoint was in."""
        tally, epoch, start = self._around.tally, self._epoch, self._start
        # A look at what a training is to go on with, as an evaluation, sees all of it and leaves its place alone.
        passes_by = start > 0 and not torch.is_grad_enabled()
        start = 0 if passes_by else start
        self._trains = self._trains or (self._iteration is not None and self._iteration.trained)
        self._refuse_two_loops()
        if callable(getattr(self.dataset, "set_epoch", None)):
            self.dataset.set_epoch(epoch)
        self._restart_workers_if_changed()
        shard, batches = self._begin(epoch, start)
        if self._batches.num_workers:
            release_at_exit(self)
        iteration = self.iteration = tally.open(shard, start=start)
        batches, has_ended = _moved(batches, self._around.device), False
        try:
            while True:
                with_grad = torch.is_grad_enabled()
                self._before_batch(iteration, with_grad=with_grad)
                if iteration.number < 0 and not passes_by:  # not before: a run may have ended there
                    self._epoch, self._start = epoch + 1, 0
                    self.training_loops += with_grad and self._is_of_training(iteration)
                try:
                    rows, batch, odd = next(batches)
                except StopIteration:
                    has_ended = True
                    return
                if with_grad and iteration.number < 0:
                    self._iteration, self._iterated = iteration, epoch
                tally.yields(iteration, rows, with_grad=with_grad)
                iteration.odd = odd
                if self._is_few or rows.of_rank < 2:
                    self._note_few(rows)
                if iteration.number == 0 and rows.of_batch < self._around.world.world_size:
                    tally.is_uneven |= not can_be_emptied(batch, num_rows=rows.of_rank or rows.borrowed)
                if rows.of_rank:
                    yield batch
                elif (handed := self._without_rows(iteration, batch, with_grad)) is not None:
                    yield handed
        finally:
            tally.close(iteration)
            self._note_few(None)
            self._note_few(None)
            only_looked = not has_ended and iteration.number == 0 and not iteration.trained
            if start and only_looked and self._epoch == epoch + 1:
                self._epoch, self._start = epoch, start

    def _before_batch(self, iteration: Iteration, *, with_grad: bool) -> None:
        self._meets |= iteration.meets
        if not with_grad:
            self._likeness.see_dataset(self._mark)
        elif iteration.rows is None or iteration.rows.ends_group:
            self._around.at_boundary(iteration.number < 0, self._is_of_training(iteration))
            self._likeness.check(self._mark)

    @property
    def rows(self) -> int:
        """Samples of this rank in the batch that was yielded last; 0 where the rank computes another rank's row."""
        iteration = self.iteration
        return 0 if iteration is None or iteration.rows is None else iteration.rows.of_rank

    def _without_rows(self, iteration: Iteration, batch: Any, with_grad: bool) -> Any:
        """Return what this rank gets of a batch in which it has no row; None for nothing."""
        tally, around = self._around.tally, self._around
        situation = absent.Situation(
            with_grad=with_grad,
            is_first=iteration.number == 0,
            has_trained=iteration.trained,
            may_train=self._trains or (not tally.has_trained and around.has_optimizer()),
            in_training_mode=around.in_training_mode(),
            body_meets=self._meets,
            forward_meets=around.forward_meets(),
            is_beside=tally.is_beside(iteration, trained=iteration.trained),
            takes_any=self.takes_any,
        )
        borrowed = iteration.rows.borrowed if iteration.rows else 1
        what = absent.choose(situation)
        if what == absent.BORROW:
            iteration.borrow(borrowed)
            if around.few_rows is not None:
                around.few_rows.borrow(self._advice(), knows=self.takes_any)
            return batch
        empty = absent.emptied(batch, situation, num_rows=borrowed) if what == absent.EMPTY else None
        if empty is not None and not situation.has_trained and around.few_rows is not None:
            around.few_rows.compute_without(batch, empty)
        return empty

    def _note_few(self, rows: Rows | None) -> None:
        """Say that a batch has so few rows here that a layer may be unable to compute it, or that it is over."""
        watch, was_few = self._around.few_rows, self._is_few
        self._is_few = rows is not None and rows.of_rank < 2 and self._around.world.world_size > 1
        if watch is not None and (self._is_few or was_few):
            watch.watch(rows if self._is_few else None, self._advice() if self._is_few else "")

    def _advice(self) -> str:
        counted = self.batch_size and self._last == "exact" and not isinstance(self.dataset, IterableDataset)
        return absent.advice(self._length() if counted else None, self.batch_size, self._around.world)

    def release(self) -> None:
        """Let workers that wait for another epoch go."""
        self._batches._iterator = None

    @property
    def shuffles(self) -> bool:
        """Whether each epoch has another order of ours."""
        return self._shuffle

    def _refuse_two_loops(self) -> None:
        if self._batches.persistent_workers and self.iteration is not None and self.iteration.live:
            raise UsageError(
                Finding(
                    "option-contradicted",
                    "a loop over this loader is under way, and its workers serve one at a time",
                    where="session.loader(...)",
                    fix="a second loader for the inner loop, or session.loader(..., persistent_workers=False)",
                )
            )

    def _restart_workers_if_changed(self) -> None:
        """Let workers see what the script has changed in the dataset since they were started."""
        if self._batches.persistent_workers:
            state = state_of(self.dataset)
            if self._batches._iterator is not None and state != self._state_of_dataset:
                self.release()
            self._state_of_dataset = state

    def describe(self) -> str:
        """Return what was decided that the script does not say, one line to print; empty if there is nothing."""
        ranks, size, groups = self._around.world.world_size, self.batch_size, self._around.accumulate
        per_rank = f"{size // ranks}" + (f" to {size // ranks + 1}" if size % ranks else "")
        parts = []
        if ranks > 1 and size:
            parts.append(f"batches of {size}, {per_rank} a rank")
        if groups > 1 and self._shuffle:  # in no order of its own it may be for evaluation, which has no steps
            parts.append(f"{groups} of its batches are one training step")
        counted = size and self._last == "exact" and not isinstance(self.dataset, IterableDataset)
        rest = self._length() % size if counted else 0
        if 0 < rest < ranks:
            parts.append(f"{rest} in the last, where other ranks' loader.rows is 0: see docs/guides/data.md")
        notes = list(filter(None, (", ".join(parts), self.reason)))
        if not in_memory(self.dataset) and takes_batches(self.dataset):
            name = type(self.dataset).__name__
            notes.append(f"what {name}.__getitems__ draws at random depends on the number of ranks")
        return "; ".join(notes)

    @property
    def under_way(self) -> bool:
        """Whether a training loop over it goes on, so that a checkpoint now is one in the middle of an epoch."""
        running = self._iteration
        if running is None or not running.live or not running.with_grad or running.rows is None:
            return False
        return self._is_of_training(running)

    def _is_of_training(self, iteration: Iteration) -> bool:
        """Return whether a loop with autograd is one of training: people evaluate without ``torch.no_grad()`` too.

        It is if it, an earlier one over this loader, or none at all so far had a backward.
        """
        return iteration.trained or self._trains or not self._around.tally.has_trained

    def state_dict(self) -> dict[str, int]:
        """Return how far it has come, at any world size: the epoch, its samples that are done, and of how many."""
        if self.under_way and self._iteration is not None and not self._sharded:
            return {"epoch": self._iterated, "done": self._iteration.done(), "length": self._length()}
        epoch = self._iterated if self.under_way else self._epoch
        return {"epoch": epoch, "done": self._start, "length": self._length()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where another one stood.

        Raises:
            UsageError: It stood in the middle of an epoch of another number of samples.
        """
        if state["done"] and state["length"] != self._length():
            raise UsageError(
                Finding(
                    "data-changed",
                    f"the checkpoint was made after {state['done']} of {state['length']} samples of an epoch, "
                    f"and this dataset has {self._length()}",
                    where="session.restore(...)",
                    why="the samples that are left would not be those that were left then",
                    fix="train on the same data, or restore a checkpoint that was saved at the end of an epoch",
                )
            )
        self._epoch, self._start = state["epoch"], state["done"]

    def _length(self) -> int:
        if isinstance(self.dataset, IterableDataset):
            return -1
        if self._sampler is not None:
            return len(self._sampler)
        return len(self.dataset)

    def _settings(self, num_workers: int | None, options: dict[str, Any], *, is_stream: bool) -> dict[str, Any]:
        for name in options:
            if name not in _HANDED_ON:
                near = closest(name, _HANDED_ON)
                raise UsageError(
                    Finding(
                        "option-unknown",
                        f"session.loader has no option {name}",
                        where="session.loader(...)",
                        fix=f"{near}=..." if near else "see the documentation of Session.loader",
                    )
                )
        chosen = self._chosen(is_stream)
        settings = {name: value for name, value in options.items() if value is not None}
        if num_workers is None:
            wanted = any(settings.get(name) for name in _OF_WORKERS)  # options that need workers ask for some
            num_workers = max(chosen.num_workers, wanted)
            self.reason = chosen.reason if num_workers == chosen.num_workers else ""
        if not num_workers and settings.get("timeout"):
            raise contradiction("timeout= is for workers, and there are none")
        settings["num_workers"] = num_workers
        settings.setdefault("pin_memory", chosen.pin_memory)
        if num_workers:
            # Starting them again costs seconds an epoch, and some versions of Python deadlock in a fork now and then. A
            # DataLoader of the user's has False by default, which says nothing: only session.loader(...) is asked.
            settings.setdefault("persistent_workers", True)
        return settings

    def _chosen(self, is_stream: bool) -> Loading:
        world = self._around.world
        return choose(
            cpus=self._around.cpus,
            ranks=world.local_world_size,
            in_memory=in_memory(self.dataset),
            stream=is_stream,
            on_gpu=self._around.device.type == "cuda",
            can_fork=sys.platform == "linux",
        )

    def _make_samples(self, collate: Callable[[list[Any]], Any] | None, settings: dict[str, Any]) -> None:
        collate = None if collate is default_collate else collate
        stacked = type(self.dataset) is TensorDataset and collate is None
        collate = self._units.counted(collate, only_labels=self.dataset.tensors if stacked else ())
        self._requests = _Requests()
        self._batches: DataLoader[Any] = DataLoader(
            Samples(self.dataset, seed=self._around.seed, stacked=stacked),
            batch_sampler=cast(Any, self._requests),
            collate_fn=as_it_is if stacked and collate is None else collate,
            **settings,
        )

    def _make_stream(self, collate: Callable[[list[Any]], Any] | None, settings: dict[str, Any]) -> None:
        world, size = self._around.world, self.batch_size
        if self._sharded:
            size, extra = divmod(size, world.world_size)
            if extra:
                raise contradiction(
                    f"batch_size={self.batch_size} does not divide by {world.world_size} ranks, "
                    "whose streams are read side by side"
                )
        collate = self._units.counted(None if collate is default_collate else collate) or default_collate
        self._stream = Stream(
            self.dataset,
            seed=self._around.seed,
            batch_size=size,
            last=self._last,
            collate=collate,
            is_counted=self._units.is_counted,
            is_compared=world.world_size > 1 and not self._sharded,
            rank=0 if self._sharded else world.rank,
            world_size=1 if self._sharded else world.world_size,
            share_of_seed=world.rank if self._sharded else 0,
        )
        self._batches = DataLoader(self._stream, batch_size=None, collate_fn=as_it_is, **settings)

    def _begin(self, epoch: int, start: int) -> tuple[Callable[[int], Shard] | None, Iterator[Served]]:
        world, size = self._around.world, self.batch_size
        if isinstance(self.dataset, IterableDataset):

            def served(end: int) -> Shard:  # all batches up to there but the last are whole
                return Shard(EvenBatches(end, size, start=start), world.rank, world.world_size)

            return None if self._sharded else served, self._begin_stream(epoch, start)
        order, batches = self._order(epoch, start)
        shard = Shard(batches, world.rank, world.world_size, self._around.accumulate)
        self._requests.begin(epoch, order, shard)
        # The batches first, so that torch's iterator sees its end and lets its workers go.
        pairs = zip(self._batches, shard.rows(), strict=False)
        if self._units.is_counted:
            return (lambda _: shard), (
                (rows, batch, self._units.see(unit, rows.of_rank)) for (batch, unit), rows in pairs
            )
        return (lambda _: shard), ((rows, batch, "") for batch, rows in pairs)

    def _begin_stream(self, epoch: int, start: int) -> Iterator[Served]:
        self._stream.at[0], self._stream.at[1] = epoch, start
        pieces: Iterator[Piece] = iter(self._batches)
        accumulate = self._around.accumulate
        if not self._sharded:
            for number, piece in enumerate(pieces):
                if piece.mark is not None:
                    key = f"{epoch}/{start}/{number}"
                    self._likeness.see_stream(key, piece.mark)
                rows = whole_rows(piece, number, accumulate)
                yield rows, piece.batch, self._units.see(piece.unit, rows.of_rank)
            return
        for number, (piece, total, is_last) in enumerate(met_pieces(pieces, self._around.total)):
            rows = whole_rows(piece._replace(of_batch=total, is_last=is_last), number, accumulate)
            yield rows, piece.batch, self._units.see(piece.unit, rows.of_rank)

    def _order(self, epoch: int, start: int) -> tuple[Order, EvenBatches | GivenBatches]:
        if self._sampler is None:
            length = len(self.dataset)
            batches = EvenBatches(length, self.batch_size, self._last, start)
            if not self._shuffle:
                return StoredOrder(range(length)), batches
            return shuffled(length, seed=self._around.seed, epoch=epoch), batches
        drawn = self._draws.of_epoch(epoch)
        self._likeness.check_drawn(drawn, self._sampler)
        if self.batch_size:
            return StoredOrder(drawn), EvenBatches(len(drawn), self.batch_size, self._last, start)
        bounds = list(itertools.accumulate(map(len, drawn), initial=0))
        left = bounds[bisect.bisect_left(bounds, start) :] or bounds[-1:]
        return StoredOrder([index for batch in drawn for index in batch]), GivenBatches(left)

    def _mark(self) -> tuple[Any, ...]:
        return fingerprint(self.dataset), self.batch_size, self._shuffle, self._last


class _Requests:
    """The batch sampler handed to torch: for each batch the epoch and the indices of this rank's share."""

    def __init__(self) -> None:
        self._begun: Iterator[Request] = iter(())

    def begin(self, epoch: int, order: Order, shard: Shard) -> None:
        """Set what the next iteration yields."""
        self._begun = ((epoch, indices) for indices in blocks(order, shard.read()))

    def __iter__(self) -> Iterator[Request]:
        return self._begun


def _moved(batches: Iterator[Served], device: torch.device) -> Iterator[Served]:
    if device.type == "cpu":
        return batches
    if device.type == "cuda":
        return moved_ahead(batches, device)
    return ((rows, to_device(batch, device), odd) for rows, batch, odd in batches)
