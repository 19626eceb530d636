"""What a loader needs of its session: the interface that keeps it independent of Session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from paceline.train.data.batch_tracker import BatchTracker
from paceline.train.data.share import Rows
from paceline.world import World


class FewRowsWatch(Protocol):
    """An object that handles batches with one row or none on this rank."""

    def watch(self, rows: Rows | None, advice: str) -> None:
        """Begin the watch of such a batch; None ends it."""

    def borrow(self, advice: str, *, is_left_out: bool) -> None:
        """Handle a batch of which the rank computes another rank's row."""

    def compute_without(self, batch: Any, empty: Any) -> None:
        """Handle a batch that the rank gets with zero rows, as ``empty``."""


def _nothing(_begins: bool, _is_of_training: bool) -> None:
    """Do nothing at a boundary."""


@dataclass(frozen=True)
class LoaderContext:
    """What a loader needs of its session."""

    world: World  # the ranks
    device: torch.device  # target of batches; on the CPU they are not moved
    tracker: BatchTracker  # records the batches that each loop yields
    seed: int = 0  # seed of the order and of the samples' random numbers
    # returns the number of batches in a group; it changes between loops only
    accumulate: Callable[[], int] = lambda: 1
    cpus: int = 1  # CPUs that the ranks of this node may use
    # called before the first batch of each group of a loop with autograd, where a step is complete.
    # Its arguments are whether the loop begins and whether it trains.
    at_boundary: Callable[[bool, bool], None] = _nothing
    few_rows: FewRowsWatch | None = None  # handles batches with one row or none on this rank
    # returns the sums of ints over all ranks; for sharded streams
    total: Callable[[list[int]], list[int]] = list
    # sets a store key if it is unset, and returns its value; does not wait for ranks
    first_of: Callable[[str, str], str] = lambda _, value: value
    # returns whether a model of the session is in training mode; None without a model
    in_training_mode: Callable[[], bool | None] = lambda: None
    # returns whether the session has an optimizer
    has_optimizer: Callable[[], bool] = lambda: False
    # returns whether every forward is a collective, as with fsdp
    forward_is_collective: Callable[[], bool] = lambda: False
