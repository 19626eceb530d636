"""The loader: yields batches on the device, divided exactly among the ranks."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from paceline.errors import UsageError, option_contradicted
from paceline.train.data import missing_rows
from paceline.train.data.adopt import check_dataset
from paceline.train.data.batch import can_be_emptied, moved
from paceline.train.data.context import LoaderContext
from paceline.train.data.iteration import Iteration, LoaderPosition, LoopState
from paceline.train.data.loader_options import (
    LoaderOptions,
    check_options,
    division,
    is_lookup,
    settings,
)
from paceline.train.data.same_data_check import SameDataCheck
from paceline.train.data.samples import WorkerStart, takes_batches
from paceline.train.data.share import Rows
from paceline.train.data.sources import BatchSource, MapBatches, StreamBatches
from paceline.train.data.worker_streams import WorkerStreamBatches


class Loader:
    """Batches of a dataset on this rank's device; each sample once per epoch at any world size.

    Iterate it once for each epoch. It reshuffles automatically, in an order that depends on seed
    and epoch alone. If a global batch has fewer samples than ranks, some ranks have no row of it.
    In training such a rank gets a row of another rank, and ``rows`` is 0: ``Session.backward``
    gives it no weight, ``Session.gather`` leaves it out. An evaluation skips the batch on that
    rank, or yields it with zero rows if the body of the loop runs collectives; see
    docs/guides/data.md.

    ``Session.loader`` makes it and documents the arguments.

    Attributes:
        dataset: The user's dataset.
        batch_size: Samples in a global batch; 0 if a batch sampler decides.
        reason: Why the number of workers was chosen; empty if the user has set it.
        iteration: The last loop over the loader.
        training_loops: Number of training loops over it that have begun.
        moves: Whether it moves batches to the device; otherwise the caller does.
        number: Place among the session's loaders, from 0; -1 for one of a single epoch.
        takes_any: Whether the caller leaves batches with ``rows`` 0 out of its results. In an
            evaluation whose forward is a collective, a rank without a row then gets another rank's.
    """

    def __init__(self, dataset: Any, context: LoaderContext, options: LoaderOptions) -> None:
        check_dataset(dataset)
        is_stream = isinstance(dataset, IterableDataset)
        check_options(options, is_stream=is_stream)
        divided = division(options, world_size=context.world.world_size)
        self.dataset, self.batch_size = dataset, divided.batch_size
        self._serves_once = divided.sampler is None and not is_stream
        self._context, self._tracker = context, context.tracker
        self._shuffle = options.shuffle
        self._same_data = SameDataCheck(
            context.first_of,
            context.total,
            world=context.world,
            name=type(dataset).__name__,
            alike=not options.sharded,
        )
        of_torch, self.reason = settings(options, dataset, context)
        of_torch["worker_init_fn"] = WorkerStart(options.worker_init_fn)
        common: dict[str, Any] = {
            "settings": of_torch,
            "same_data": self._same_data,
            "collate": options.collate_fn,
        }
        self._source: BatchSource
        if is_stream:
            kind = WorkerStreamBatches if options.sharded_by_worker else StreamBatches
            self._source = kind(dataset, context, divided, sharded=options.sharded, **common)
        else:
            self._source = MapBatches(dataset, context, divided, **common)
        self.takes_any, self.moves, self.number = False, True, -1
        self.iteration: Iteration | None = None
        self.training_loops = 0
        self._position = LoaderPosition(0, 0)
        self._length = 0  # samples of the epoch in which the position is, by the checkpoint
        self._with_grad: Iteration | None = None  # the last loop that began with autograd enabled
        self._is_few = False  # whether this rank has one row or none of the last batch
        self._runs_collectives = False  # whether the body of a loop over it has run collectives

    def __len__(self) -> int:
        """Number of batches in a whole epoch, the same on all ranks.

        Raises TypeError if the data is a stream, whose length is unknown.
        """
        return len(self._source)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, or the rest of the checkpoint's epoch."""
        iteration, batches = self._begin()
        began_at = self._position
        try:
            while True:
                with_grad = torch.is_grad_enabled()
                self._before_batch(iteration, with_grad=with_grad)
                try:
                    rows, batch, problem = next(batches)
                except StopIteration:
                    iteration.resumes = False  # the epoch is over
                    is_whole = self._serves_once and iteration.end == self._source.num_samples
                    self._tracker.whole_epochs[iteration.end] += is_whole and iteration.trained
                    return
                self._record(iteration, rows, batch, problem, with_grad=with_grad)
                if rows.of_rank:
                    yield batch
                elif (substitute := self._without_rows(iteration, batch, with_grad)) is not None:
                    yield substitute
                else:
                    iteration.served.pop()
        finally:
            self._end(iteration, began_at)

    def _begin(self) -> tuple[Iteration, Iterator[Any]]:
        """Begin a loop: return its record and its batches."""
        self._refuse_two_loops()
        epoch, done = self._position
        # An evaluation of data that a training run will resume with sees all of it, and does not
        # change the position.
        resumes = done > 0 and torch.is_grad_enabled()
        if resumes:
            self._check_length(done)
        start = done if resumes else 0
        previous = self._with_grad
        shard, batches = self._source.begin(epoch, start)
        if self._source.has_workers:
            _release_at_exit(self)
        self.iteration = Iteration(
            epoch,
            self.number,
            resumes=resumes,
            trained_before=previous is not None and (previous.trained or previous.trained_before),
            shard=shard,
            group_start=start,
            end=start,
        )
        self._tracker.open(self.iteration)
        self._tracker.latest[self] = self.iteration
        if self.moves:
            batches = moved(batches, self._context.device)
        return self.iteration, self._source.finished(epoch, batches)

    def _before_batch(self, iteration: Iteration, *, with_grad: bool) -> None:
        """Record that a loop fetches its next batch, and act if all ranks are at a boundary."""
        begins = iteration.number < 0
        state = self._tracker.fetches(iteration, with_grad=with_grad)
        self._runs_collectives |= iteration.runs_collectives
        if not with_grad:
            self._same_data.see_dataset(self._source.mark)
        elif iteration.rows is None or iteration.rows.ends_group:
            self._context.at_boundary(begins, state.trains)
            self._same_data.check(self._source.mark)
        # The position advances after the boundary, because the run may end in the boundary.
        if begins and (iteration.resumes or not self._position.done):
            self._position = LoaderPosition(iteration.epoch + 1, 0)
            self.training_loops += state.trains

    def _record(
        self, iteration: Iteration, rows: Rows, batch: Any, problem: str, *, with_grad: bool
    ) -> None:
        """Record the batch that a loop yields next."""
        self._tracker.yields(iteration, rows, with_grad=with_grad)
        iteration.weight_problem = problem
        iteration.any_problem = iteration.any_problem or problem
        if self._is_few or rows.of_rank < 2:
            self._note_few(rows)
        if iteration.number:
            return
        if with_grad:
            self._with_grad = iteration
        if rows.of_batch < self._context.world.world_size:
            self._tracker.is_uneven |= not can_be_emptied(
                batch, num_rows=rows.of_rank or rows.borrowed
            )

    def _end(self, iteration: Iteration, began_at: LoaderPosition) -> None:
        """End a loop; restore the position if the loop only fetched its first batch to resume."""
        has_only_fetched_one = self._tracker.state_of(iteration) is LoopState.RESUMING
        self._tracker.close(iteration)
        self._note_few(None)
        if has_only_fetched_one and self._position == (iteration.epoch + 1, 0):
            self._position = began_at

    @property
    def rows(self) -> int:
        """Samples of this rank in the last batch; 0 if the rank computes another rank's row."""
        iteration = self.iteration
        return 0 if iteration is None or iteration.rows is None else iteration.rows.of_rank

    def _without_rows(self, iteration: Iteration, batch: Any, with_grad: bool) -> Any:
        """Return what this rank gets of a batch in which it has no row; None to skip the batch."""
        tracker, context = self._tracker, self._context
        situation = missing_rows.Situation(
            with_grad=with_grad,
            is_first=iteration.number == 0,
            has_trained=iteration.trained,
            may_train=iteration.trained_before
            or (not tracker.has_trained and context.has_optimizer()),
            in_training_mode=context.in_training_mode(),
            body_runs_collectives=self._runs_collectives,
            forward_is_collective=context.forward_is_collective(),
            is_beside=tracker.is_beside(iteration, trained=iteration.trained),
            takes_any=self.takes_any,
        )
        borrowed = iteration.rows.borrowed if iteration.rows else 1
        choice = missing_rows.choose(situation)
        if choice == missing_rows.LEAVE_OUT:
            return None
        if choice == missing_rows.BORROW:
            iteration.borrow(borrowed)
            if context.few_rows is not None:
                context.few_rows.borrow(self._advice(), is_left_out=self.takes_any)
            return batch
        empty = missing_rows.emptied(batch, situation, num_rows=borrowed)
        if empty is not None and not situation.has_trained and context.few_rows is not None:
            context.few_rows.compute_without(batch, empty)
        return empty

    def _note_few(self, rows: Rows | None) -> None:
        """Begin or end the watch of a batch with one row or none on this rank."""
        was_few = self._is_few
        self._is_few = rows is not None and rows.of_rank < 2
        watch = self._context.few_rows
        is_alone = self._context.world.world_size == 1
        if watch is None or (is_alone and was_few and self._is_few):  # the hooks are there
            return
        if self._is_few:
            watch.watch(rows, self._advice())
        elif was_few:
            watch.watch(None, "")

    def _advice(self) -> str:
        return missing_rows.advice(
            self._source.num_even_samples, self.batch_size, self._context.world
        )

    def release(self) -> None:
        """Release workers that wait for another epoch."""
        self._source.release()

    @property
    def shuffles(self) -> bool:
        """Whether paceline shuffles each epoch."""
        return self._shuffle

    def _refuse_two_loops(self) -> None:
        if self._source.serves_one_loop and self.iteration is not None and self.iteration.live:
            raise option_contradicted(
                "a loop over this loader is under way, and its workers serve one at a time",
                where="session.loader(...)",
                fix=(
                    "a second loader for the inner loop, or session.loader(...,"
                    " persistent_workers=False)"
                ),
            )

    def describe(self) -> str:
        """Return the choices that the script did not make, one line to print; empty without any."""
        ranks, groups = self._context.world.world_size, self._context.accumulate()
        size = self.batch_size
        per_rank = f"{size // ranks}" + (f" to {size // ranks + 1}" if size % ranks else "")
        parts = []
        if ranks > 1 and size:
            parts.append(f"batches of {size}, {per_rank} a rank")
        if groups > 1 and self._shuffle:  # unshuffled may mean evaluation, without steps
            parts.append(f"{groups} of its batches are one training step")
        num_samples = self._source.num_even_samples
        rest = 0 if num_samples is None else num_samples % size
        if 0 < rest < ranks:
            parts.append(
                f"{rest} in the last, where other ranks' loader.rows is 0: see docs/guides/data.md"
            )
        notes = list(filter(None, (", ".join(parts), self.reason)))
        if not is_lookup(self.dataset) and takes_batches(self.dataset):
            name = type(self.dataset).__name__
            notes.append(f"what {name}.__getitems__ draws at random depends on the number of ranks")
        elif unset := self._source.describe_unset():
            notes.append(unset)
        return "; ".join(notes)

    @property
    def under_way(self) -> bool:
        """Whether a training loop over it is live, so a checkpoint would be inside an epoch."""
        return self._with_grad is not None and self._tracker.state_of(self._with_grad).trains

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for any world size: epoch, samples done, and samples in total.

        Of a stream that divides itself among workers it also has each one's samples.
        """
        epoch, done = self._position
        if self._with_grad is not None and self.under_way:
            epoch = self._with_grad.epoch
            done = self._with_grad.done() if self._source.has_position else done
            length = self._source.num_samples
        else:
            length = self._length if done else self._source.num_samples
        return {"epoch": epoch, "done": done, "length": length, **self._source.place(epoch, done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the position of a checkpoint.

        In the middle of an epoch it needs the data of then. That is checked when a loop continues
        it: until then another loader may take this one's place. Raises UsageError if a stream was
        divided among another number of workers.
        """
        self._source.return_to(state)
        self._position, self._length = (
            LoaderPosition(state["epoch"], state["done"]),
            state["length"],
        )

    def take_place_of(self, former: Loader) -> None:
        """Continue with the next epoch of another loader, or with the rest of a restored one.

        Raises UsageError if a loop over the other loader has not ended.
        """
        if former.iteration is not None and former.iteration.live:
            raise option_contradicted(
                "a loop over the loader that is replaced has not ended",
                where="session.loader(..., instead_of=...)",
                fix="replace it before the loop over it, at the start of an epoch",
            )
        former.release()
        place = former.state_dict()
        if place["done"]:
            self._source.return_to(place)
        self._position, self._length, self._with_grad, self.training_loops = former.past()

    def past(self) -> tuple[LoaderPosition, int, Iteration | None, int]:
        """Return what a loader in its place continues with: position and training loops."""
        return self._position, self._length, self._with_grad, self.training_loops

    def _check_length(self, done: int) -> None:
        """Refuse to continue in the middle of an epoch that had another number of samples."""
        if self._length == self._source.num_samples:
            return
        raise UsageError.of(
            "data-changed",
            f"the checkpoint was made after {done} of {self._length} samples of an epoch, and"
            f" this dataset has {self._source.num_samples}",
            where="session.restore(...)",
            why="the remaining samples would differ from those that remained then",
            fix=(
                "train on the same data, or restore a checkpoint that was saved at the end of"
                " an epoch"
            ),
        )


_with_workers: weakref.WeakSet[Loader] = weakref.WeakSet()


def _release_at_exit(loader: Loader) -> None:
    """Release a loader's workers at the end of the process, if the loader still exists."""
    # Registered again each time, so that it runs before torch's own exit handlers, which are
    # registered when workers start. Those wait five seconds for each worker, and then send SIGTERM,
    # which our workers survive for a while.
    _with_workers.add(loader)
    atexit.unregister(_release_all)
    atexit.register(_release_all)


def _release_all() -> None:
    for loader in list(_with_workers):
        loader.release()
