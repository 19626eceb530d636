"""Which batch a loss belongs to, and how far each loop has come: what loaders tell their session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.data.shard import Rows, Shard
from paceline.errors import Finding, UsageError


@dataclass(eq=False, slots=True)
class Iteration:
    """One run through a loader, as the tally knows it.

    Attributes:
        shard: Returns the batches that it runs through, given how many samples it has served up to now; None for a
            stream whose ranks each read something else.
        rows: Those of the batch yielded last.
        num_batches: Batches yielded since the last backward.
        with_grad: Whether the last one was fetched with autograd enabled.
        live: Whether the loop over the loader goes on.
        trained: Whether a backward was called in it.
        group_start: Samples of the epoch that were served before the group of the last batch.
        end: Samples of the epoch that were served up to the last batch.
        number: Number of the last batch, from 0.
    """

    shard: Callable[[int], Shard] | None = None
    rows: Rows | None = None
    num_batches: int = 0
    with_grad: bool = True
    live: bool = True
    trained: bool = False
    group_start: int = 0
    end: int = 0
    number: int = -1

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
        """Return how many samples of the epoch need not be served again if the run went on from here.

        A group that is not complete begins anew: the gradients of its first batches are in no checkpoint.
        """
        if self.rows is None:
            return self.end
        # Nobody knows of the first batch whether a backward will come; later ones of a loop without any wait for none.
        waits_for_backward = self.num_batches > 0 and (self.trained or self.number == 0)
        return self.end if self.rows.ends_group and not waits_for_backward else self.group_start


class Tally:
    """Which batch the next backward belongs to; shared by the loaders of a session.

    A loop over a loader takes down each batch that it yields, and is no longer live when it ends: at the last
    batch, or by ``break``, which closes the loader's generator at once. An evaluation loop between two training
    batches has therefore ended by the time of the next backward.

    Attributes:
        before_group: Called before the first batch of each group of a loop with autograd, where a step is complete;
            with whether the loop begins, and whether it is one of training.
        on_sync: Called with whether the next backward ends its group, if groups have more than one batch.
        last: The loop that yielded a batch last.
    """

    def __init__(self) -> None:
        self._iterations: list[Iteration] = []
        self._rows: Rows | None = None
        self.before_group: Callable[[bool, bool], None] | None = None
        self.on_sync: Callable[[bool], None] | None = None
        self.last: Iteration | None = None
        self.is_again = False  # whether the last backward was another one of the same batch
        self._trained: Iteration | None = None  # the loop that the last backward belonged to

    @property
    def has_trained(self) -> bool:
        """Whether there was a backward of any loop's batch."""
        return self._trained is not None

    def open(self, shard: Callable[[int], Shard] | None = None, *, start: int = 0) -> Iteration:
        """Return the record of a loop that begins; its attributes say what the arguments are."""
        self._iterations = [each for each in self._iterations if each.live or each.num_batches]
        self._iterations.append(Iteration(shard, group_start=start, end=start))
        return self._iterations[-1]

    def close(self, iteration: Iteration) -> None:
        """Take down that a loop has ended."""
        iteration.live = False
        if self.on_sync is not None:  # an evaluation may have been between two batches of a group
            self.on_sync(self._ends_group())

    def yields(self, iteration: Iteration, rows: Rows, *, with_grad: bool) -> None:
        """Take down that a loop is about to yield a batch."""
        before = iteration.rows
        if before is None or before.ends_group:
            iteration.group_start = iteration.end
        iteration.end += rows.of_batch
        iteration.number += 1
        iteration.rows = rows
        iteration.num_batches += 1
        iteration.with_grad = with_grad
        self.last = iteration
        if with_grad and self.on_sync is not None:
            self.on_sync(self._ends_group())

    def _ends_group(self) -> bool:
        """Whether a group ends with the present batches: of several loops, as of a zip, if it does for one."""
        rows = [each.rows for each in self._iterations if each.live and each.with_grad and each.rows]
        return any(each.ends_group for each in rows) if rows else True

    @property
    def has_left_group(self) -> bool:
        """Whether the loop of the last backward has ended, so that no more batches of its group will come."""
        return self._trained is not None and not self._trained.live

    def take(self, *, weighted: bool = False) -> Rows | None:
        """Return the rows of the batch that a backward now belongs to, and start anew.

        Args:
            weighted: Whether the caller knows the weight, so that several loops may come into question: their rows
                are then those of the first, and the group ends if it does for one of them.

        Returns:
            Those of the batch yielded since the last call; if there was none, those of the last call again (a
            second loss of the same batch); None if nothing was ever yielded, or by evaluations only.

        Raises:
            UsageError: Several batches come into question.
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
            for each in since if weighted else (chosen,):  # those of a zip are trained on together
                each.trained |= each is chosen or (each.live and each.with_grad)
            self._trained = chosen
            self._rows = chosen.rows
            if weighted and self._rows is not None and len(since) > 1:
                self._rows = self._rows._replace(ends_group=self._ends_group())
        for each in since:
            each.num_batches = 0
        return self._rows


def _any_of(since: list[Iteration]) -> Iteration | None:
    """Return the first loop that a weighted loss may be from; None if all were evaluations."""
    found = [each for each in since if each.live and each.with_grad]
    found = found or [each for each in since if each.live or each.with_grad]
    return found[0] if found else None


def _refuse_replay(trained: Iteration | None) -> None:
    """A loss with no new batch belongs to the last one, but not if that was the end of a loop of several."""
    if trained is not None and not trained.live and trained.number > 0:
        raise _unknown_weight(
            "no batch came from a loader since the loop over it has ended",
            fix="session.backward(loss, weight=number_of_samples), or loop over the loader again: "
            "itertools.cycle(loader) serves the first epoch's batches for ever",
        )


def _refuse_holes(chosen: Iteration, weighted: bool) -> None:
    """A batch of a group without a backward: its samples are counted in, its gradient is missing."""
    rows = chosen.rows
    alone = rows is None or rows.of_group in (None, rows.of_batch)
    if chosen.num_batches > 1 and not alone and not weighted:
        raise _unknown_weight(
            f"{chosen.num_batches - 1} of the last batches had no session.backward, inside a group of accumulated ones",
            fix="session.backward(loss, weight=num_samples) on all batches, or backward(0 * loss) for one to leave out",
        )


def _choose(since: list[Iteration]) -> Iteration | None:
    """Return which of the loops that yielded a batch the loss is from; None if all were evaluations."""
    live = [each for each in since if each.live]
    if len(live) == 1:
        return live[0]
    found = [each for each in live or since if each.with_grad]  # under no_grad evaluations advance
    if not live and not found:
        return None
    if len(found) != 1:
        raise _unknown_weight(
            f"{len(since)} loaders yielded a batch since the last backward",
            fix="session.backward(loss, weight=number_of_samples), or one backward for each batch before the next",
        )
    (one,) = found
    if not one.live and one.num_batches > 1:
        raise _unknown_weight(
            f"a loader yielded {one.num_batches} batches since the last backward, and was left",
            fix="call session.backward inside the loop over the loader; evaluate under torch.no_grad()",
        )
    return one


def _unknown_weight(what: str, *, fix: str) -> UsageError:
    return UsageError(
        Finding(
            "batch-weight-unknown",
            f"{what}, so the batch of this loss is not known",
            where="session.backward(loss)",
            why="a rank's loss is weighted by its share of the batch; a wrong weight would change the result "
            "with the number of ranks",
            fix=fix,
        )
    )
