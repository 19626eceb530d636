"""The loader: batches on the device, shared out exactly among the ranks.

Built on torch's DataLoader, which gets our list of indices for each batch and does the rest.
"""

from __future__ import annotations

import atexit
import bisect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from paceline.data.adopt import check_dataset, check_sampler, check_stream, fingerprint
from paceline.data.arguments import check_options, contradiction, global_batch_size
from paceline.data.batch import moved_ahead, to_device, without_rows
from paceline.data.changes import state_of
from paceline.data.order import Order, StoredOrder, blocks, derive, shuffled
from paceline.data.samples import Request, Samples, WorkerStart, in_memory, seeded, takes_batches
from paceline.data.shard import EvenBatches, GivenBatches, Rows, Shard
from paceline.data.stream import Piece, Stream, met_pieces, whole_rows
from paceline.data.tally import Iteration, Tally
from paceline.data.tune import Loading, choose
from paceline.errors import Finding, UsageError, closest
from paceline.world import World

# Arguments that torch's DataLoader takes as they are.
_OF_WORKERS = ("timeout", "multiprocessing_context", "persistent_workers", "prefetch_factor")
_HANDED_ON = ("pin_memory", *_OF_WORKERS)

_with_workers: weakref.WeakSet[Loader] = weakref.WeakSet()


@dataclass(frozen=True)
class Surroundings:
    """What a loader needs of its session.

    Attributes:
        world: The ranks.
        device: Where batches are moved to; those on the CPU stay as the workers made them.
        tally: Where each loop takes down the batches that it yields.
        seed: Seed of the order and of the samples' own randomness.
        accumulate: Batches of a group.
        cpus: CPUs that the ranks of this node may use.
        total: Returns the sums of ints over all ranks; for sharded streams.
    """

    world: World
    device: torch.device
    tally: Tally
    seed: int = 0
    accumulate: int = 1
    cpus: int = 1
    total: Callable[[list[int]], list[int]] = list


class Loader:
    """Batches of a dataset on this rank's device; every sample exactly once per epoch at any world size.

    Iterate it once for each epoch: it reshuffles by itself, in an order that depends on seed and epoch alone.
    All ranks get the same number of batches; where a global batch has fewer samples than ranks, some get a batch
    of zero rows: every tensor and NumPy array in it has shape ``[0, ...]``, lists of plain values and those with an
    entry for each sample are empty, and other objects are those of a real sample. A mean over such a batch is NaN in
    value (its gradient is not); sums are 0.

    ``Session.loader`` makes it and documents the arguments.
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
        self.reason = ""  # of the settings that were chosen; empty if none was
        self._around, self._epoch, self._start = around, 0, 0
        self.iteration: Iteration | None = None  # the last loop over it
        self._iteration: Iteration | None = None  # the last one with autograd
        self._iterated = 0  # its epoch
        self._is_checked = around.world.world_size == 1
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
        self._generators = _generators_of(self._sampler)
        self._num_drawn = 0  # epochs for which the sampler was asked
        settings = self._settings(num_workers, options, is_stream=is_stream)
        settings["worker_init_fn"] = WorkerStart(worker_init_fn)
        # Its own generator, because torch would draw a seed for the workers from the global one at each epoch.
        settings["generator"] = torch.Generator().manual_seed(derive("workers", around.seed))
        try:
            if is_stream:
                if sharded is None:
                    check_stream(dataset)
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
            _release_at_exit(self)
        iteration = self.iteration = tally.open(shard, start=start)
        batches, has_ended = _moved(batches, self._around.device), False
        try:
            while True:
                with_grad = torch.is_grad_enabled()
                fresh = iteration.rows is None or iteration.rows.ends_group
                if with_grad and fresh and tally.before_group is not None:
                    tally.before_group(iteration.number < 0, self._is_of_training(iteration))
                    self._check_same_data()
                if iteration.number < 0 and not passes_by:  # not before: a run may have ended there
                    self._epoch, self._start = epoch + 1, 0
                    self.training_loops += with_grad and self._is_of_training(iteration)
                try:
                    rows, batch = next(batches)
                except StopIteration:
                    has_ended = True
                    return
                if with_grad and iteration.number < 0:
                    self._iteration, self._iterated = iteration, epoch
                tally.yields(iteration, rows, with_grad=with_grad)
                yield batch if rows.of_rank else without_rows(batch)
        finally:
            tally.close(iteration)
            only_looked = not has_ended and iteration.number == 0 and not iteration.trained
            if start and only_looked and self._epoch == epoch + 1:
                self._epoch, self._start = epoch, start

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
                    fix="session.loader(..., num_workers=0), or a second loader for the inner loop",
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
        """Return what its batches come to and what was chosen for it, one line to print."""
        ranks, size, groups = self._around.world.world_size, self.batch_size, self._around.accumulate
        per_rank = f"{size // ranks}" + (f" to {size // ranks + 1}" if size % ranks else "")
        parts = [f"batches of {size}" if size else "batches of the sampler's"]
        if ranks > 1 and size:
            parts.append(f"{per_rank} a rank")
        if groups > 1:
            parts.append(f"{groups} of them a training step")
        counted = size and self._last == "exact" and not isinstance(self.dataset, IterableDataset)
        rest = self._length() % size if counted else 0
        if 0 < rest < ranks:
            parts.append(f"{rest} in the last, where the other ranks get zero rows")
        notes = [", ".join(parts)] + [self.reason] * bool(self.reason)
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
            settings.setdefault("persistent_workers", True)  # starting them anew costs seconds an epoch
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
        self._requests = _Requests()
        self._batches: DataLoader[Any] = DataLoader(
            Samples(self.dataset, seed=self._around.seed, stacked=stacked),
            batch_sampler=cast(Any, self._requests),
            collate_fn=_as_it_is if stacked else collate,
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
        self._stream = Stream(
            self.dataset,
            seed=self._around.seed,
            batch_size=size,
            last=self._last,
            collate=collate or default_collate,
            rank=0 if self._sharded else world.rank,
            world_size=1 if self._sharded else world.world_size,
            share_of_seed=world.rank if self._sharded else 0,
        )
        self._batches = DataLoader(self._stream, batch_size=None, collate_fn=_as_it_is, **settings)

    def _begin(self, epoch: int, start: int) -> tuple[Callable[[int], Shard] | None, Iterator[tuple[Rows, Any]]]:
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
        return (lambda _: shard), ((rows, batch) for batch, rows in pairs)

    def _begin_stream(self, epoch: int, start: int) -> Iterator[tuple[Rows, Any]]:
        self._stream.at[0], self._stream.at[1] = epoch, start
        pieces: Iterator[Piece] = iter(self._batches)
        accumulate = self._around.accumulate
        if not self._sharded:
            for number, piece in enumerate(pieces):
                yield whole_rows(piece, number, accumulate), piece.batch
            return
        for number, (piece, rows, is_last) in enumerate(met_pieces(pieces, self._around.total)):
            known = piece._replace(of_batch=rows, is_last=is_last)
            yield whole_rows(known, number, accumulate), piece.batch

    def _order(self, epoch: int, start: int) -> tuple[Order, EvenBatches | GivenBatches]:
        if self._sampler is None:
            length = len(self.dataset)
            batches = EvenBatches(length, self.batch_size, self._last, start)
            if not self._shuffle:
                return StoredOrder(range(length)), batches
            return shuffled(length, seed=self._around.seed, epoch=epoch), batches
        drawn = self._drawn(epoch)
        if self.batch_size:
            return StoredOrder(drawn), EvenBatches(len(drawn), self.batch_size, self._last, start)
        bounds = list(itertools.accumulate(map(len, drawn), initial=0))
        left = bounds[bisect.bisect_left(bounds, start) :] or bounds[-1:]
        return StoredOrder([index for batch in drawn for index in batch]), GivenBatches(left)

    def _drawn(self, epoch: int) -> list[Any]:
        """Return what the user's sampler yields in an epoch, the same on all ranks and in a resumed run."""
        if not _is_torchs(self._sampler):
            # It may go on from the epoch before, as one that shuffles its list in place.
            for missed in range(self._num_drawn, epoch):
                self._draw(missed)
            self._num_drawn = epoch + 1
        drawn = self._draw(epoch)
        self._check_alike(drawn, f"{type(self._sampler).__name__} yields another order on each rank")
        return drawn

    def _draw(self, epoch: int) -> list[Any]:
        if callable(getattr(self._sampler, "set_epoch", None)):
            self._sampler.set_epoch(epoch)
        for generator, first in self._generators:
            # As the user seeded it in the first epoch; then by the epoch's number, which a resumed run knows too.
            generator.manual_seed(derive("sampler", first, epoch) if epoch else first)
        with seeded("sampler", self._around.seed, epoch):
            return list(self._sampler)

    def _check_same_data(self) -> None:
        """See once, where all ranks are, that they have the same data, as far as can be seen without reading it."""
        if not self._is_checked and not self._sharded:
            self._is_checked = True
            mark = (fingerprint(self.dataset), self.batch_size, self._shuffle, self._last)
            self._check_alike(mark, f"{type(self.dataset).__name__} is not the same dataset on all ranks")

    def _check_alike(self, mark: Any, what: str) -> None:
        number = derive(mark) & 0xFFFFF
        total, squares = self._around.total([number, number * number])
        if self._around.world.world_size * squares != total * total:  # their variance is not 0
            raise UsageError(
                Finding(
                    "data-not-shardable",
                    what,
                    where="session.loader(...)",
                    why="ranks share out one order of one dataset; otherwise samples are missing and others come twice",
                    fix="seed what is random in it alike on all ranks: generator=torch.Generator().manual_seed(0)",
                )
            )


class _Requests:
    """The batch sampler handed to torch: for each batch the epoch and the indices of this rank's share."""

    def __init__(self) -> None:
        self._begun: Iterator[Request] = iter(())

    def begin(self, epoch: int, order: Order, shard: Shard) -> None:
        """Set what the next iteration yields."""
        self._begun = ((epoch, indices) for indices in blocks(order, shard.read()))

    def __iter__(self) -> Iterator[Request]:
        return self._begun


def _release_at_exit(loader: Loader) -> None:
    # Registered anew each time, so that it runs before torch's own exit handlers, which are as young as the workers:
    # those wait five seconds for each, and then send a SIGTERM that our workers outlive for a while.
    _with_workers.add(loader)
    atexit.unregister(_release_all)
    atexit.register(_release_all)


def _release_all() -> None:
    for loader in list(_with_workers):
        loader.release()


def _moved(batches: Iterator[tuple[Rows, Any]], device: torch.device) -> Iterator[tuple[Rows, Any]]:
    if device.type == "cpu":
        return batches
    if device.type == "cuda":
        return moved_ahead(batches, device)
    return ((rows, to_device(batch, device)) for rows, batch in batches)


def _is_torchs(sampler: Any) -> bool:
    """Return whether a sampler, and the one inside a batch sampler, keeps nothing from one epoch to the next."""
    inner = getattr(sampler, "sampler", None)
    parts = [sampler] if inner is None else [sampler, inner]
    return all(
        type(part).__module__ == torch.utils.data.sampler.__name__ or callable(getattr(part, "set_epoch", None))
        for part in parts
    )


def _generators_of(sampler: Any) -> list[tuple[torch.Generator, int]]:
    """Return the generators of a sampler and of the one inside a batch sampler, each with its seed."""
    parts = (sampler, getattr(sampler, "sampler", None))
    found = (getattr(part, "generator", None) for part in parts)
    return [(each, each.initial_seed()) for each in found if isinstance(each, torch.Generator)]


def _as_it_is(batch: Any) -> Any:
    return batch
