"""The record of one loop over a loader: its state, position, and the rows it has yielded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from paceline.train.data.share import Rows, Shard


class LoopState(Enum):
    """What a loop over a loader is doing.

    Scripts also evaluate without ``torch.no_grad()``, so autograd alone does not make a loop a
    training loop. It is one if it had a backward, an earlier loop over the same loader had one, or
    no loop at all had one so far.
    """

    IDLE = ("idle", False)  # the loop has ended
    # no backward is expected. Ranks do not stop in it, and it holds no position of a checkpoint.
    EVALUATING = ("evaluating", False)
    # it resumes an epoch from a checkpoint, and only its first batch was fetched. If it ends in
    # this state, the position remains the checkpoint's.
    RESUMING = ("resuming", True)
    TRAINING = ("training", True)  # the loop trains on its batches

    def __init__(self, _name: str, trains: bool) -> None:
        self.trains = trains  # whether a checkpoint saved now is in the middle of this loop


class LoaderPosition(NamedTuple):
    """Where the next loop begins."""

    epoch: int  # number of the epoch, from 0
    done: int  # samples of the epoch that were served before


@dataclass(eq=False, slots=True)
class Iteration:
    """One loop over a loader, as ``BatchTracker`` records it."""

    epoch: int = 0  # number of the epoch, from 0
    loader: int = 0  # number of the loader in its session, from 0; -1 for one of a single epoch
    resumes: bool = False  # whether it resumes an epoch, and its second batch was not requested yet
    trained_before: bool = False  # whether an earlier loop over the same loader had a backward
    # returns the batches of the loop, given the samples served so far; None for a stream that
    # differs between ranks
    shard: Callable[[int], Shard] | None = None
    rows: Rows | None = None  # rows of the last batch
    num_batches: int = 0  # batches yielded since the last backward
    num_used: int = 0  # its batches that had a backward
    with_grad: bool = True  # whether the last batch was fetched with autograd enabled
    live: bool = True  # whether the loop has not ended
    trained: bool = False  # whether a backward was called in it
    group_start: int = 0  # samples of the epoch served before the last batch's group
    end: int = 0  # samples of the epoch served up to the last batch
    number: int = -1  # number of the last batch, from 0
    own: int = 0  # rows of this rank in all batches so far
    served: list[Rows] = field(default_factory=list)  # rows of each batch that the script got
    # for each borrowed batch, the number of rows before it and its number of rows
    borrowed: list[tuple[int, int]] = field(default_factory=list)
    has_borrowed: bool = False  # whether the last batch is borrowed
    num_draws: int = 0  # calls of ``RowRandom`` for the last batch
    runs_collectives: bool = False  # whether the loop's body has run collectives
    weight_problem: str = ""  # why the rows of the last batch are not its weight; empty if they are
    any_problem: str = ""  # the first of these of the loop

    def borrow(self, num_rows: int) -> None:
        """Record that the last batch consists of another rank's rows."""
        self.has_borrowed = True
        self.borrowed.append((self.own + sum(number for _, number in self.borrowed), num_rows))

    def own_of(self, num_rows: int) -> list[int] | None:
        """Return which of a rank's collected rows are its own; None if all are.

        The rows are those of the last batch, or of all batches so far.
        """
        if self.has_borrowed and num_rows == self.borrowed[-1][1]:
            return []
        if not self.borrowed or num_rows != self.own + sum(number for _, number in self.borrowed):
            return None
        others = {
            place for start, number in self.borrowed for place in range(start, start + number)
        }
        return [place for place in range(num_rows) if place not in others]

    def spans_of(self, sizes: list[int]) -> list[list[range]] | None:
        """Return the positions of the ranks' rows; None if not of the last batch or of all."""
        if self.shard is None or self.number < 0:
            return None
        shard = self.shard(self.end)
        ranks = range(shard.world_size)
        for batches in ([self.number], range(self.number + 1)):
            spans = [[shard.positions_of(batch, rank) for batch in batches] for rank in ranks]
            if [sum(map(len, of_rank)) for of_rank in spans] == sizes:
                return spans
        return None

    def done(self) -> int:
        """Return how many samples of the epoch are done for a run that resumes from here.

        An incomplete group is repeated: the gradients of its first batches are in no checkpoint.
        """
        if self.rows is None:
            return self.end
        # After the first batch we cannot know whether a backward will follow. If none followed,
        # later batches of the loop are not waiting for one either.
        waits_for_backward = self.num_batches > 0 and (self.trained or self.number == 0)
        return self.end if self.rows.ends_group and not waits_for_backward else self.group_start
