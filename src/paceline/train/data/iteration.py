"""One loop over a loader: what it has yielded, what became of that, and what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from paceline.train.data.shard import Rows, Shard


class LoopState(Enum):
    """What a loop over a loader is doing.

    People evaluate without ``torch.no_grad()`` too, so autograd alone does not make a loop one of
    training. It is one if it, an earlier loop over the same loader, or no loop at all so far had a
    backward.

    Attributes:
        IDLE: The loop has ended.
        EVALUATING: No backward is expected of it. Nobody stops in it, and it holds no position of a
            checkpoint.
        RESUMING: It continues an epoch from a checkpoint, and nothing but its first batch was looked
            at. If it ends like this, the position stays that of the checkpoint.
        TRAINING: Its batches are trained on.
        trains: Whether a checkpoint that is made now is one in the middle of this loop.
    """

    IDLE = ("idle", False)
    EVALUATING = ("evaluating", False)
    RESUMING = ("resuming", True)
    TRAINING = ("training", True)

    def __init__(self, _name: str, trains: bool) -> None:
        self.trains = trains


class Position(NamedTuple):
    """Where the next loop begins.

    Attributes:
        epoch: Number of the epoch.
        done: Samples of it that were served before.
    """

    epoch: int
    done: int


@dataclass(eq=False, slots=True)
class Iteration:
    """One run through a loader, as the tally knows it.

    Attributes:
        epoch: Number of the epoch, from 0.
        resumes: Whether it continues an epoch, and has not been asked for a second batch yet.
        trained_before: Whether an earlier loop over the same loader had a backward.
        shard: Returns the batches that it runs through, given how many samples it has served up to now; None for a
            stream whose ranks each read something else.
        rows: Those of the batch yielded last.
        num_batches: Batches yielded since the last backward.
        with_grad: Whether the last one was fetched with autograd enabled.
        live: Whether the loop over the loader has not ended.
        trained: Whether a backward was called in it.
        group_start: Samples of the epoch that were served before the group of the last batch.
        end: Samples of the epoch that were served up to the last batch.
        number: Number of the last batch, from 0.
        own: Rows of this rank, of all batches up to now.
        borrowed: Where this rank got rows of other ranks: their place behind the rows before them, and their number.
        has_borrowed: Whether the last batch is such a one.
        meets: Whether the loop's body has called other ranks.
        odd: Why the rows of the last batch are not its weight; empty where they are.
    """

    epoch: int = 0
    resumes: bool = False
    trained_before: bool = False
    shard: Callable[[int], Shard] | None = None
    rows: Rows | None = None
    num_batches: int = 0
    with_grad: bool = True
    live: bool = True
    trained: bool = False
    group_start: int = 0
    end: int = 0
    number: int = -1
    own: int = 0
    borrowed: list[tuple[int, int]] = field(default_factory=list)
    has_borrowed: bool = False
    meets: bool = False
    odd: str = ""

    def borrow(self, num_rows: int) -> None:
        """Record that the last batch is of another rank's rows."""
        self.has_borrowed = True
        self.borrowed.append((self.own + sum(number for _, number in self.borrowed), num_rows))

    def own_of(self, num_rows: int) -> list[int] | None:
        """Return which of the rows that a rank has collected are its own; None if all are.

        Args:
            num_rows: How many it has collected: of the last batch, or of all batches up to it.
        """
        if self.has_borrowed and num_rows == self.borrowed[-1][1]:
            return []
        if not self.borrowed or num_rows != self.own + sum(number for _, number in self.borrowed):
            return None
        others = {place for start, number in self.borrowed for place in range(start, start + number)}
        return [place for place in range(num_rows) if place not in others]

    def spans_of(self, sizes: list[int]) -> list[list[range]] | None:
        """Return the positions of rows that ranks hold, if they are those of the last batch, or of all up to it.

        Args:
            sizes: How many rows each rank holds.
        """
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
        """Return how many samples of the epoch need not be served again if the run continued from here.

        A group that is not complete starts again: the gradients of its first batches are in no checkpoint.
        """
        if self.rows is None:
            return self.end
        # After the first batch we cannot know whether a backward will follow. If none followed, later batches of the
        # loop are not waiting for one either.
        waits_for_backward = self.num_batches > 0 and (self.trained or self.number == 0)
        return self.end if self.rows.ends_group and not waits_for_backward else self.group_start
