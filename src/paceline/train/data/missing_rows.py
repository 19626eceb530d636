"""Decide what a rank gets if it has no row of a batch: another rank's row, an empty batch, or none.

Each training step needs every rank, because gradients are averaged, and many models cannot compute
zero rows. So the rank computes another rank's row, with weight 0. An evaluation does not need every
rank, so it skips the batch. The choice is a pure function, because ranks in the same situation must
choose alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError
from paceline.train.data.batch import can_be_emptied, without_rows
from paceline.world import World

BORROW, EMPTY, LEAVE_OUT = "borrow", "empty", "leave out"


@dataclass(frozen=True)
class Situation:
    """The facts that decide what a rank without a row gets."""

    with_grad: bool  # whether autograd is enabled
    is_first: bool  # whether this is the first batch of the loop
    has_trained: bool  # whether a backward was called in this loop
    may_train: bool  # whether other loops and the optimizers allow this loop to be a training loop
    # whether a model of the session is in training mode; None without a model
    in_training_mode: bool | None
    # whether the loop's body runs collectives (``session.gather``, ...)
    body_runs_collectives: bool = False
    forward_is_collective: bool = False  # whether every forward is a collective, as with fsdp
    # whether another loop of the same kind is live, as in a loop over ``zip``
    is_beside: bool = False
    # whether the caller accepts borrowed rows in an evaluation too, and leaves them out of its
    # results
    takes_any: bool = False


def choose(situation: Situation) -> str:
    """Return ``BORROW``, ``EMPTY`` or ``LEAVE_OUT`` for a rank without a row."""
    if situation.has_trained or _begins_training(situation):
        # A loss over batches of two loaders is usually a sum, to which zero rows add nothing.
        return EMPTY if situation.is_beside else BORROW
    if situation.forward_is_collective and situation.takes_any:
        return BORROW
    if situation.with_grad and situation.in_training_mode is not False:
        return EMPTY  # autograd, but no sign of training: the row must not count twice
    if situation.body_runs_collectives or situation.forward_is_collective:
        return EMPTY  # the other ranks wait for this one
    if situation.is_first or situation.is_beside:
        return EMPTY  # scripts often concatenate rows after the loop, which fails for no rows
    return LEAVE_OUT


def _begins_training(situation: Situation) -> bool:
    """Return whether the first batch of a loop looks like a training batch."""
    begins = situation.is_first and situation.with_grad
    return begins and situation.may_train and situation.in_training_mode is True


def emptied(batch: Any, situation: Situation, *, num_rows: int) -> Any:
    """Return a batch with zero rows; None if its type is unknown, so that it must be left out.

    ``batch`` has real samples; ``situation`` decided for an empty batch. Raises UsageError if the
    type is unknown, and other ranks wait for this one in the loop's body.
    """
    if can_be_emptied(batch, num_rows=num_rows):
        return without_rows(batch, num_rows=num_rows)
    if situation.has_trained or situation.body_runs_collectives or situation.forward_is_collective:
        raise _cannot_take_part(batch)
    return None


def _cannot_take_part(batch: Any) -> UsageError:
    return UsageError.of(
        "rows-too-few",
        f"this rank has no row of a batch, and a {type(batch).__name__} without rows cannot be"
        " made",
        where="a loop over session.loader(...) that calls the other ranks",
        why=(
            "the other ranks wait for this one in the loop's body, and a sample of theirs must"
            " not count twice"
        ),
        fix=(
            "call session.gather and session.reduce after the loop, or session.loader(...,"
            ' last="drop")'
        ),
    )


def batch_size_for(length: int, batch_size: int, world_size: int, *, least: int = 2) -> int | None:
    """Return the closest batch size that gives every rank ``least`` rows of every batch.

    ``length`` is that of the epoch, in samples. None if there are too few.
    """
    needed = least * world_size
    most = min(length, max(needed, 2 * batch_size) + needed)
    sizes = [size for size in range(needed, most + 1) if not 0 < length % size < needed]
    return min(sizes, key=lambda size: abs(size - batch_size), default=None)


def advice(length: int | None, batch_size: int, world: World) -> str:
    """Return a fix to paste: a batch size that gives every rank two rows of every batch.

    ``length`` is that of the epoch, in samples; None if unknown, or if the last batch is dropped
    already.
    """
    better = None if length is None else batch_size_for(length, batch_size, world.world_size)
    if better is None:
        return 'session.loader(..., last="drop"), with two samples of a batch for each rank'
    drop = 'session.loader(..., last="drop"), or ' if batch_size >= 2 * world.world_size else ""
    return f"{drop}session.loader(..., batch_size={better}): every rank has two rows of every batch"
