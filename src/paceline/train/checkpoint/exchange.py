"""Exchange values and failures between the ranks of a checkpoint, over a separate gloo group."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch.distributed as dist

from paceline.train import runtime
from paceline.train.checkpoint import findings
from paceline.train.checkpoint.findings import CheckpointFailure
from paceline.world import World

T = TypeVar("T")
R = TypeVar("R")


class RankExchange:
    """The ranks that handle a checkpoint together.

    Every method but ``where`` is a collective. An error on one rank is raised on all ranks, so that
    no rank waits for another that has failed.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._group: dist.ProcessGroup | None = None
        self._cause: Exception | None = None  # this rank's exception, for its traceback

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._world.rank == 0

    @property
    def where(self) -> str:
        """This rank and its host, for messages."""
        return f"rank {self._world.rank} on {socket.gethostname()}"

    def open(self) -> None:
        """Create the group if needed; in the main thread, like all other groups."""
        if self._world.world_size > 1 and self._group is None:
            # Separate, because the background thread communicates during training, in no fixed
            # order to it.
            self._group = dist.new_group(backend="gloo", timeout=runtime.group_timeout())

    def close(self) -> None:
        """Destroy the group."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Return the results of ``work`` on each rank, in the order of ranks."""
        mine = self._attempt(work)
        if self._world.world_size == 1:
            return self._raise_failures([mine])
        answers: list[Any] = [None] * self._world.world_size
        dist.all_gather_object(answers, mine, group=self._group)
        return self._raise_failures(answers)

    def ask_main(self, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0 only, and return its result on all ranks."""
        answer = [self._attempt(work) if self.is_main else None]
        if self._world.world_size > 1:
            dist.broadcast_object_list(answer, src=0, group=self._group)
        return self._raise_failures(cast("list[T]", answer))[0]

    def decide(self, work: Callable[[], T], on_main: Callable[[list[T]], Sequence[R]]) -> R:
        """Let rank 0 decide from the values of all ranks; return the answer for this rank.

        ``on_main`` takes all values, in the order of ranks, and returns an answer for each rank. It
        is not called if a rank has failed.
        """
        mine = self._attempt(work)
        if self._world.world_size == 1:
            return on_main(self._raise_failures([mine]))[0]
        offers: list[Any] | None = [None] * self._world.world_size if self.is_main else None
        dist.gather_object(mine, offers, dst=0, group=self._group)
        answers: list[Any] | None = None
        if offers is not None:
            answered = self._attempt(lambda: on_main(self._raise_failures(offers)))
            size = self._world.world_size
            answers = (
                [answered] * size if isinstance(answered, CheckpointFailure) else list(answered)
            )
        answer: list[Any] = [None]
        dist.scatter_object_list(answer, answers, src=0, group=self._group)
        return cast(R, self._raise_failures(answer)[0])

    def _attempt(self, work: Callable[[], T]) -> T | CheckpointFailure:
        try:
            return work()
        except Exception as error:  # any exception must reach the other ranks
            if self._world.world_size == 1:
                raise
            self._cause = error
            return findings.of_exception(error, where=self.where)

    def _raise_failures(self, answers: Sequence[T | CheckpointFailure]) -> list[T]:
        failures = {
            rank: answer
            for rank, answer in enumerate(answers)
            if isinstance(answer, CheckpointFailure)
        }
        if failures:
            cause, self._cause = self._cause, None
            raise findings.merge(failures).error() from cause
        return cast("list[T]", list(answers))
