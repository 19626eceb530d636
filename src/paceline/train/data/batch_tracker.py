"""Decide which batch a loss belongs to, and how far each loop has come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from paceline.errors import Finding, UsageError, option_contradicted
from paceline.train.data.iteration import Iteration, LoopState
from paceline.train.data.share import Rows


class BatchTracker:
    """Tracks which batch the next backward belongs to; shared by the loaders of a session.

    A loop over a loader records each batch that it yields. It is live until it ends: at the last
    batch, or by ``break``, which closes the loader's generator at once. An evaluation loop between
    two training batches has therefore ended before the next backward.
    """

    def __init__(self) -> None:
        # called with whether the next backward ends its group; None if groups have one batch
        self.on_sync: Callable[[bool], None] | None = None
        # called with why the batch of a loss is not known, where it need not be: on one rank, and
        # without accumulation. None refuses such a loss.
        self.on_held: Callable[[str], None] | None = None
        # called with a loop and whether the script computes a batch of it from now on; None after
        # the first step
        self.on_batch: Callable[[Iteration, bool], None] | None = None
        self._iterations: list[Iteration] = []
        self._rows: Rows | None = None
        self.last: Iteration | None = None  # the loop that yielded a batch last
        # the last loop over each loader
        self.latest: WeakKeyDictionary[object, Iteration] = WeakKeyDictionary()
        # training loops that served each sample once, by their number of samples
        self.whole_epochs: Counter[int] = Counter()
        # whether a rank was left out of all batches of some loop; known to all ranks
        self.is_uneven = False
        self.is_borrowed = False  # whether the last backward is of another rank's rows
        self.is_again = False  # whether the last backward was a second one of its batch
        self._trained: Iteration | None = None  # the loop of the last backward
        self._holds = False  # whether the script trained on a batch that it had fetched earlier

    @property
    def has_trained(self) -> bool:
        """Whether any loop's batch had a backward."""
        return self._trained is not None

    def open(self, iteration: Iteration) -> None:
        """Track a loop that begins."""
        self._iterations = [loop for loop in self._iterations if loop.live or loop.num_batches]
        self._iterations.append(iteration)

    def fetches(self, iteration: Iteration, *, with_grad: bool) -> LoopState:
        """Record that a loop fetches its next batch; return what the loop is doing."""
        if self.on_batch is not None:
            self.on_batch(iteration, False)
        if iteration.number >= 0:
            iteration.resumes = False  # its first batch was used
        return self.state_of(iteration, with_grad)

    def state_of(self, iteration: Iteration, with_grad: bool | None = None) -> LoopState:
        """Return what a loop is doing; ``with_grad`` None means as for the last batch."""
        if with_grad is None:
            with_grad = iteration.with_grad
        if not iteration.live:
            return LoopState.IDLE
        if not with_grad:
            return LoopState.EVALUATING
        if iteration.trained:
            return LoopState.TRAINING
        if iteration.resumes:
            return LoopState.RESUMING
        if iteration.trained_before or self._trained is None:
            return LoopState.TRAINING
        return LoopState.EVALUATING

    def close(self, iteration: Iteration) -> None:
        """Record that a loop has ended."""
        iteration.live = False
        if self.on_batch is not None:
            self.on_batch(iteration, False)
        if self.on_sync is not None:  # this may be an evaluation between two batches of a group
            self.on_sync(self._ends_group())

    def yields(self, iteration: Iteration, rows: Rows, *, with_grad: bool) -> None:
        """Record that a loop is about to yield a batch."""
        previous = iteration.rows
        if previous is None or previous.ends_group:
            iteration.group_start = iteration.end
        iteration.end += rows.of_batch
        iteration.number += 1
        iteration.rows = rows
        iteration.own += rows.of_rank
        iteration.served.append(rows)
        iteration.has_borrowed = False
        iteration.num_draws = 0
        iteration.num_batches += 1
        iteration.with_grad = with_grad
        self.last = iteration
        if with_grad and self.on_sync is not None:
            self.on_sync(self._ends_group())
        if self.on_batch is not None:
            self.on_batch(iteration, True)

    def _ends_group(self) -> bool:
        """Whether a group ends with the current batches; with several loops, if it ends for one."""
        batches = [
            loop.rows for loop in self._iterations if loop.live and loop.with_grad and loop.rows
        ]
        return any(rows.ends_group for rows in batches) if batches else True

    @property
    def current(self) -> Iteration | None:
        """The loop whose batch the script computes: the last, or the one around it if it ended."""
        live = [loop for loop in self._iterations if loop.live and loop.rows is not None]
        return self.last if not live or self.last in live else live[-1]

    @property
    def is_training(self) -> bool:
        """Whether a loop that trains has yielded a batch and not ended."""
        begun = [loop for loop in self._iterations if loop.rows is not None]
        return any(self.state_of(loop).trains for loop in begun)

    def note_collective(self) -> None:
        """Record that the bodies of all live loops run collectives."""
        for loop in self._iterations:
            loop.runs_collectives |= loop.live

    def is_beside(self, iteration: Iteration, *, trained: bool) -> bool:
        """Return whether another loop is live, as in ``zip``, and its ``trained`` is the same."""
        others = [loop for loop in self._iterations if loop is not iteration and loop.live]
        return any(loop.trained == trained for loop in others)

    @property
    def has_left_group(self) -> bool:
        """Whether the loop of the last backward has ended, so that its group stays incomplete."""
        return self._trained is not None and not self._trained.live

    def take(self, *, weighted: bool = False) -> Rows | None:
        """Return the rows of the batch that a backward belongs to, and reset the count of batches.

        They are those of the batch yielded since the last call; without a new batch, of the last
        call (a second loss of the same batch). None if no batch was yielded, or only by
        evaluations. If the caller gives the weight, several loops are possible: the rows are those
        of the first, and the group ends if it does for one of them. Raises UsageError if the loss
        may belong to several batches.
        """
        recent = [loop for loop in self._iterations if loop.num_batches]
        try:
            return self._take(recent, weighted=weighted)
        except _BatchUnknownError as error:
            if self.on_held is None:
                raise
            self.on_held(error.finding.what)
        self._take_held(recent)
        return None

    def check_position(self) -> None:
        """Refuse a checkpoint while the script holds batches that it has not trained on yet."""
        trained = [*self._iterations, self._trained] if self._holds else []
        for loop in trained:
            if loop is not None and loop.trained and loop.num_used != loop.number + 1:
                raise _unknown_position(loop.number + 1, loop.num_used)

    def _take_held(self, recent: list[Iteration]) -> None:
        """Record a backward of a batch that the script had fetched earlier.

        It is of one batch of each live loop, as in ``zip``, or of the first loop that has ended.
        """
        self._holds, self.is_again, self._rows = True, False, None
        for loop in [loop for loop in recent if loop.live] or recent[:1]:
            loop.num_batches -= 1
            loop.num_used += 1
            self._trained = loop
        for loop in recent:
            loop.trained |= loop.with_grad
        if not recent and self._trained is not None:
            self._trained.num_used += 1

    def _take(self, recent: list[Iteration], *, weighted: bool) -> Rows | None:
        self.is_again = not recent and self._rows is not None
        if not recent:
            if not weighted:
                _check_loop_is_live(self._trained)
            return self._rows
        if len(recent) == 1 and recent[0].live:
            source: Iteration | None = recent[0]
        else:
            source = _loop_of_weighted_loss(recent) if weighted else _loop_of_loss(recent)
        if source is not None:
            if weighted:
                self._record_weighted(source, recent)
            else:
                if source.num_batches > 1 or source.weight_problem:
                    _check_weight(source)
                self._trained, self._rows = source, source.rows
                source.trained = True
                source.num_used += 1
                self.is_borrowed = source.has_borrowed
        for loop in recent:
            loop.num_batches = 0
        return self._rows

    def _record_weighted(self, source: Iteration, recent: list[Iteration]) -> None:
        """Record a backward that trains on the batches of all live loops, as in ``zip``.

        Raises UsageError if the loss is of both another rank's rows and this rank's.
        """
        zipped = [loop for loop in recent if loop.live and loop.with_grad]
        for loop in {source, *zipped}:
            loop.trained = True
            loop.num_used += 1
        self._trained, self._rows = source, source.rows
        self.is_borrowed = _is_borrowed(zipped or [source])
        if self._rows is not None and len(recent) > 1:
            self._rows = self._rows._replace(ends_group=self._ends_group())


def _check_loop_is_live(trained: Iteration | None) -> None:
    """Refuse a loss without a new batch after the end of a loop of several batches."""
    if trained is not None and not trained.live and trained.number > 0:
        raise _unknown_weight(
            "no batch came from a loader since the loop over it has ended",
            fix=(
                "session.backward(loss, weight=number_of_samples), or loop over the loader again: "
                "itertools.cycle(loader) serves the first epoch's batches for ever"
            ),
        )


def _check_weight(source: Iteration) -> None:
    """Refuse a batch whose rows are not the weight of its loss.

    A batch that was skipped inside a group is one: its samples are counted in the group, but its
    gradient is missing.
    """
    rows = source.rows
    if source.num_batches > 1 and rows is not None and rows.of_group not in (None, rows.of_batch):
        raise _unknown_weight(
            f"{source.num_batches - 1} of the last batches had no session.backward, inside a group"
            " of accumulated ones",
            fix=(
                "session.backward(loss, weight=num_samples) on all batches, or backward(0 * loss)"
                " for one to leave out"
            ),
        )
    if source.weight_problem:
        raise not_of_samples(source.weight_problem)


def _loop_of_weighted_loss(recent: list[Iteration]) -> Iteration | None:
    """Return the first loop that a weighted loss may belong to; None if all were evaluations."""
    zipped = [loop for loop in recent if loop.live and loop.with_grad]
    candidates = zipped or [loop for loop in recent if loop.live or loop.with_grad]
    return candidates[0] if candidates else None


def _loop_of_loss(recent: list[Iteration]) -> Iteration | None:
    """Return the loop that a loss belongs to; None if all were evaluations."""
    live = [loop for loop in recent if loop.live]
    if len(live) == 1:
        return live[0]
    candidates = [loop for loop in live or recent if loop.with_grad]  # no_grad means evaluation
    if not live and not candidates:
        return None
    if len(candidates) != 1:
        raise _unknown_weight(
            f"{len(recent)} loaders yielded a batch since the last backward",
            fix=(
                "session.backward(loss, weight=number_of_samples), or one backward for each batch"
                " before the next"
            ),
        )
    (source,) = candidates
    if not source.live and source.num_batches > 1:
        raise _unknown_weight(
            f"a loader yielded {source.num_batches} batches since the last backward, and was left",
            fix=(
                "call session.backward inside the loop over the loader; evaluate under"
                " torch.no_grad()"
            ),
        )
    return source


def _is_borrowed(loops: list[Iteration]) -> bool:
    """Return whether a loss is of another rank's rows, without weight; refuse one of both kinds."""
    num_borrowed = sum(loop.has_borrowed for loop in loops)
    if 0 < num_borrowed < len(loops):
        raise _unknown_weight(
            "this rank has rows of one loader's batch and none of another's",
            fix=(
                'session.loader(..., last="drop"), or batch sizes that leave every rank a row of'
                " each"
            ),
        )
    return num_borrowed > 0


def not_of_samples(problem: str, *, call: str = "session.backward") -> UsageError:
    """Return the error for a loss that is not a mean over samples, for the reason ``problem``."""
    return UsageError.of(
        "batch-weight-unknown",
        f"{problem}, so the weight of this loss is not known",
        where=f"{call}(loss)",
        why=(
            "a loss is weighted by its samples; a mean over something else, of which samples"
            " have different numbers, would change with the number of ranks"
        ),
        fix=(
            f"{call}(loss, weight=n) with what the loss is a mean over: n = (labels !="
            " -100).sum(), class_weights[labels].sum() or len(rows); in a training_step: return"
            " {'loss': loss, 'weight': n}"
        ),
    )


class _BatchUnknownError(UsageError):
    """A loss may be of several batches, or of none that was served since the last one."""


def _unknown_position(num_served: int, num_used: int) -> UsageError:
    return option_contradicted(
        f"a loader has served {num_served} batches, and {num_used} were trained on: after a"
        " checkpoint the training would continue at another batch",
        where="session.save()",
        why="the script keeps batches (list(loader), itertools.cycle(loader), a prefetcher)",
        fix="for x, y in loader: ..., in every epoch; session.loader loads ahead by itself",
    )


def _unknown_weight(what: str, *, fix: str) -> UsageError:
    return _BatchUnknownError(
        Finding(
            "batch-weight-unknown",
            f"{what}, so the batch of this loss is not known",
            where="session.backward(loss)",
            why=(
                "a rank's loss is weighted by its share of the batch; a wrong weight would change"
                " the result with the number of ranks"
            ),
            fix=fix,
        )
    )
