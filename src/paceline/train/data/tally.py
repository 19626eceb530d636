"""Decide which batch a loss belongs to, and how far each loop has come."""

from __future__ import annotations

from collections.abc import Callable

from paceline.errors import Finding, UsageError
from paceline.train.data.iteration import Iteration, LoopState
from paceline.train.data.shard import Rows


class Tally:
    """Which batch the next backward belongs to; shared by the loaders of a session.

    A loop over a loader records each batch that it yields. It is no longer live when it ends: at
    the last batch, or by ``break``, which closes the loader's generator at once. An evaluation loop
    between two training batches has therefore ended before the next backward.

    Args:
        on_sync: Called with whether the next backward ends its group; None if groups have one
            batch.

    Attributes:
        last: The loop that yielded a batch last.
        is_uneven: Whether a rank was left out of all batches of some loop; known to all ranks.
        is_borrowed: Whether the last backward is of another rank's rows.
        is_again: Whether the last backward was a second one of its batch.
    """

    def __init__(self, on_sync: Callable[[bool], None] | None = None) -> None:
        self._on_sync = on_sync
        self._iterations: list[Iteration] = []
        self._rows: Rows | None = None
        self.last: Iteration | None = None
        self.is_uneven = False
        self.is_borrowed = False
        self.is_again = False
        self._trained: Iteration | None = None  # the loop of the last backward

    @property
    def has_trained(self) -> bool:
        """Whether any loop's batch had a backward."""
        return self._trained is not None

    def open(self, iteration: Iteration) -> None:
        """Track a loop that begins."""
        self._iterations = [each for each in self._iterations if each.live or each.num_batches]
        self._iterations.append(iteration)

    def asks(self, iteration: Iteration, *, with_grad: bool) -> LoopState:
        """Record that a loop fetches its next batch; return what the loop is doing.

        Args:
            iteration: The loop.
            with_grad: Whether autograd is enabled.
        """
        if iteration.number >= 0:
            iteration.resumes = False  # its first batch was used
        return self.state_of(iteration, with_grad)

    def state_of(self, iteration: Iteration, with_grad: bool | None = None) -> LoopState:
        """Return what a loop is doing.

        Args:
            iteration: The loop.
            with_grad: Whether autograd is enabled; None means as for the last batch.
        """
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
        if self._on_sync is not None:  # this may be an evaluation between two batches of a group
            self._on_sync(self._ends_group())

    def yields(self, iteration: Iteration, rows: Rows, *, with_grad: bool) -> None:
        """Record that a loop is about to yield a batch."""
        before = iteration.rows
        if before is None or before.ends_group:
            iteration.group_start = iteration.end
        iteration.end += rows.of_batch
        iteration.number += 1
        iteration.rows = rows
        iteration.own += rows.of_rank
        iteration.has_borrowed = False
        iteration.num_batches += 1
        iteration.with_grad = with_grad
        self.last = iteration
        if with_grad and self._on_sync is not None:
            self._on_sync(self._ends_group())

    def _ends_group(self) -> bool:
        """Whether a group ends with the current batches; with several loops, if it ends for one."""
        rows = [
            each.rows for each in self._iterations if each.live and each.with_grad and each.rows
        ]
        return any(each.ends_group for each in rows) if rows else True

    def meet(self) -> None:
        """Record that the bodies of all live loops run collectives."""
        for each in self._iterations:
            each.meets |= each.live

    def is_beside(self, iteration: Iteration, *, trained: bool) -> bool:
        """Return whether another loop is live, as in ``zip``, and has ``trained`` as given."""
        others = [each for each in self._iterations if each is not iteration and each.live]
        return any(each.trained == trained for each in others)

    @property
    def has_left_group(self) -> bool:
        """Whether the loop of the last backward has ended, so that its group stays incomplete."""
        return self._trained is not None and not self._trained.live

    def take(self, *, weighted: bool = False) -> Rows | None:
        """Return the rows of the batch that a backward belongs to, and reset the count of batches.

        Args:
            weighted: Whether the caller gives the weight. Several loops are possible then: the rows
                are those of the first, and the group ends if it does for one of them.

        Returns:
            The rows of the batch yielded since the last call. If there was no batch, the rows of
            the last call (a second loss of the same batch). None if no batch was yielded, or only
            by evaluations.

        Raises:
            UsageError: The loss may belong to several batches.
        """
        since = [each for each in self._iterations if each.num_batches]
        self.is_again = not since and self._rows is not None
        if not since:
            if not weighted:
                _refuse_replay(self._trained)
            return self._rows
        if len(since) == 1 and since[0].live:
            chosen: Iteration | None = since[0]
        else:
            chosen = _any_of(since) if weighted else _choose(since)
        if chosen is not None:
            _refuse_holes(chosen, weighted)
            if chosen.odd and not weighted:
                raise not_of_samples(chosen.odd)
            for each in since if weighted else (chosen,):  # a zip trains on all its batches
                each.trained |= each is chosen or (each.live and each.with_grad)
            self._trained = chosen
            self._rows = chosen.rows
            together = [each for each in since if each.live and each.with_grad] if weighted else []
            self.is_borrowed = _has_borrowed(together or [chosen])
            if weighted and self._rows is not None and len(since) > 1:
                self._rows = self._rows._replace(ends_group=self._ends_group())
        for each in since:
            each.num_batches = 0
        return self._rows


def _any_of(since: list[Iteration]) -> Iteration | None:
    """Return the first loop that a weighted loss may belong to; None if all were evaluations."""
    found = [each for each in since if each.live and each.with_grad]
    found = found or [each for each in since if each.live or each.with_grad]
    return found[0] if found else None


def _refuse_replay(trained: Iteration | None) -> None:
    """Refuse a loss without a new batch after the end of a loop of several batches."""
    if trained is not None and not trained.live and trained.number > 0:
        raise _unknown_weight(
            "no batch came from a loader since the loop over it has ended",
            fix=(
                "session.backward(loss, weight=number_of_samples), or loop over the loader again: "
                "itertools.cycle(loader) serves the first epoch's batches for ever"
            ),
        )


def _refuse_holes(chosen: Iteration, weighted: bool) -> None:
    """Refuse a skipped batch in a group: its samples are counted, but its gradient is missing."""
    rows = chosen.rows
    alone = rows is None or rows.of_group in (None, rows.of_batch)
    if chosen.num_batches > 1 and not alone and not weighted:
        raise _unknown_weight(
            f"{chosen.num_batches - 1} of the last batches had no session.backward, inside a group"
            " of accumulated ones",
            fix=(
                "session.backward(loss, weight=num_samples) on all batches, or backward(0 * loss)"
                " for one to leave out"
            ),
        )


def _choose(since: list[Iteration]) -> Iteration | None:
    """Return the loop that a loss belongs to; None if all were evaluations."""
    live = [each for each in since if each.live]
    if len(live) == 1:
        return live[0]
    found = [each for each in live or since if each.with_grad]  # no_grad means evaluation
    if not live and not found:
        return None
    if len(found) != 1:
        raise _unknown_weight(
            f"{len(since)} loaders yielded a batch since the last backward",
            fix=(
                "session.backward(loss, weight=number_of_samples), or one backward for each batch"
                " before the next"
            ),
        )
    (one,) = found
    if not one.live and one.num_batches > 1:
        raise _unknown_weight(
            f"a loader yielded {one.num_batches} batches since the last backward, and was left",
            fix=(
                "call session.backward inside the loop over the loader; evaluate under"
                " torch.no_grad()"
            ),
        )
    return one


def _has_borrowed(iterations: list[Iteration]) -> bool:
    """Return whether a loss is of another rank's rows, which have no weight.

    Raises:
        UsageError: The loss is of both another rank's rows and this rank's.
    """
    borrowed = [each for each in iterations if each.has_borrowed]
    if borrowed and len(borrowed) < len(iterations):
        raise _unknown_weight(
            "this rank has rows of one loader's batch and none of another's",
            fix=(
                'session.loader(..., last="drop"), or batch sizes that leave every rank a row of'
                " each"
            ),
        )
    return bool(borrowed)


def not_of_samples(odd: str) -> UsageError:
    """Return the error for a loss that is a mean over something other than samples, see ``odd``."""
    return UsageError(
        Finding(
            "batch-weight-unknown",
            f"{odd}, so the weight of this loss is not known",
            where="session.backward(loss)",
            why=(
                "a loss is weighted by its samples; a mean over something else, of which samples"
                " have different numbers, would change with the number of ranks"
            ),
            fix=(
                "session.backward(loss, weight=n) with what the loss is a mean over: n = (labels !="
                " -100).sum(), class_weights[labels].sum() or len(rows); in a training_step: return"
                " {'loss': loss, 'weight': n}"
            ),
        )
    )


def _unknown_weight(what: str, *, fix: str) -> UsageError:
    return UsageError(
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
