"""The part of a Session that knows the ranks: who they are, and what they do together."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from paceline.train import runtime
from paceline.train.data import BatchTracker, Loader
from paceline.train.session import means, together
from paceline.train.session.gradients import Gradients
from paceline.world import World

T = TypeVar("T")


class SessionRanks:
    """The ranks of a session, and the collectives between them."""

    _world: World
    _device: torch.device
    _gradients: Gradients
    _tracker: BatchTracker

    @property
    def rank(self) -> int:
        """Global rank, 0 to ``world_size - 1``."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world.world_size

    @property
    def local_rank(self) -> int:
        """Rank on this node, 0 to the node's number of ranks - 1."""
        return self._world.local_rank

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self._world.rank == 0

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self._device

    def reduce(self, value: T) -> T:
        """Return the sum of ``value`` over all ranks, on all ranks; for a loss, see ``mean``.

        Args:
            value: An int (summed exactly), a float (in float64), a tensor of any shape (the same on
                all ranks), or a dict, list or tuple of them. A bool counts as an int. Tensors of
                booleans or narrow integers are returned as int64, as from ``torch.sum``.

        Raises:
            UsageError: ``value`` is, or holds, another type.
        """
        self._gradients.begin_collective()
        if self._tracker.is_uneven:
            value = together.as_the_others(value)
        return cast(T, runtime.sum_over_ranks(value))

    def mean(
        self,
        value: Any,
        weight: Any = None,
        *,
        loader: Loader | None = None,
    ) -> float:
        """Return the mean over the rows of all ranks, on all ranks: what a single rank would get.

        A collective: in the loop it is one for each batch, of a list after the loop a single one.

        Args:
            value: The mean over this rank's rows of the batch that its loader yielded last, such as
                a loss; or a list of them, one for each batch of the loop. Without a loader ranks
                count equally.
            weight: What ``value`` is a mean over, if not rows: tokens. For a list, a list.
            loader: The loader of the rows; None means the one that fits.

        Raises:
            UsageError: ``value`` is not a number, or it is unknown which rows it is the mean of.
        """
        self._gradients.begin_collective()
        loops = [loop for of, loop in self._tracker.latest.items() if loader in (None, of)]
        return means.mean(value, weight, loops, self._tracker.last)

    def gather(self, value: T, loader: Loader | None = None, *, gradients: bool = False) -> T:
        """Return the rows of all ranks, on all ranks, in the order of the dataset.

        Pass the rows of a batch, or all rows of a loop over a loader, concatenated: the result is
        what a single rank would have seen. Other rows are returned in the order of ranks.

        Args:
            value: A tensor of shape ``[rows, ...]``, or a dict, list or tuple of them.
            loader: The loader of the rows; None means the loader that yielded last.
            gradients: Whether a backward continues through the rows, also on the ranks that they
                come from, as for a contrastive loss. Otherwise the result is detached. All ranks
                must then use the result in the loss that they pass to ``backward``.

        Raises:
            UsageError: ``value`` holds another type.
        """
        self._gradients.begin_collective()
        iteration = self._tracker.last if loader is None else loader.iteration
        return cast(T, together.gather(value, iteration, gradients=gradients))

    def once(self, fn: Callable[[], T], scope: str = "job") -> T:
        """Run ``fn`` on one rank while the others wait, and return its value on all ranks.

        For downloads and preprocessing. It may take any time: waiting ranks get heartbeats.

        Args:
            fn: Takes no argument; its return value must be picklable.
            scope: ``"job"`` runs it on rank 0, ``"node"`` on each node's first (for local disks).

        Raises:
            RunError: ``fn`` failed on another rank (which raises the original), or that rank ended.
            UsageError: The scope is unknown.
        """
        self._gradients.begin_collective()
        return cast(T, together.do_once(fn, scope, world=self._world))

    def print(self, *values: object) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            builtins.print(*values, flush=True)

    def barrier(self) -> None:
        """Wait until all ranks have called this method."""
        self._gradients.begin_collective()
        runtime.barrier()
