"""What ranks tell each other about a checkpoint: over a gloo group of its own, failures included."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from paceline.train.checkpoint import findings
from paceline.train.checkpoint.findings import Failure
from paceline.world import World

T = TypeVar("T")
R = TypeVar("R")


class Exchange:
    """The ranks that handle a checkpoint together.

    Every method but ``where`` is a collective. What fails on one rank is raised on all of them, so that none
    waits for another that has given up.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._group: dist.ProcessGroup | None = None
        self._cause: Exception | None = None  # what went wrong here, for its traceback

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._world.rank == 0

    @property
    def where(self) -> str:
        """This rank, in words."""
        return f"rank {self._world.rank} on {socket.gethostname()}"

    def open(self) -> None:
        """Make the group, if that has not been done; in the main thread, as other groups are made there too."""
        if self._world.world_size > 1 and self._group is None:
            # Of its own, because the background talks while training does, and in no fixed order to it.
            self._group = dist.new_group(backend="gloo", timeout=_default_timeout())

    def close(self) -> None:
        """Give the group back."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Return what ``work`` returns on each rank."""
        mine = self._attempt(work)
        if self._world.world_size == 1:
            return self._raise_failures([mine])
        answers: list[Any] = [None] * self._world.world_size
        dist.all_gather_object(answers, mine, group=self._group)
        return self._raise_failures(answers)

    def ask_main(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns on rank 0, where alone it is called."""
        answer = [self._attempt(work) if self.is_main else None]
        if self._world.world_size > 1:
            dist.broadcast_object_list(answer, src=0, group=self._group)
        return self._raise_failures(cast("list[T]", answer))[0]

    def decide(self, work: Callable[[], T], on_main: Callable[[list[T]], Sequence[R]]) -> R:
        """Let rank 0 decide on what all ranks bring.

        Args:
            work: Returns what this rank brings.
            on_main: Takes what all bring, in the order of ranks, and returns an answer for each; it is not
                called if a rank has failed.

        Returns:
            The answer for this rank.
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
            answers = [answered] * size if isinstance(answered, Failure) else list(answered)
        answer: list[Any] = [None]
        dist.scatter_object_list(answer, answers, src=0, group=self._group)
        return cast(R, self._raise_failures(answer)[0])

    def _attempt(self, work: Callable[[], T]) -> T | Failure:
        try:
            return work()
        except Exception as error:  # whatever it is, the others have to hear of it
            if self._world.world_size == 1:
                raise
            self._cause = error
            return findings.of_exception(error, where=self.where)

    def _raise_failures(self, answers: Sequence[T | Failure]) -> list[T]:
        failures = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, Failure)}
        if failures:
            cause, self._cause = self._cause, None
            raise findings.merge(failures).error() from cause
        return cast("list[T]", list(answers))


def _default_timeout() -> Any:
    # That of the default group, which torch tells in no other way; None is torch's own default.
    try:
        group = cast(dist.ProcessGroup, dist.group.WORLD)
        return group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None
