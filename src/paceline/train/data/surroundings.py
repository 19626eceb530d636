"""What a loader needs of its session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.train.data.tally import Tally
from paceline.world import World


@dataclass(frozen=True)
class Surroundings:
    """What a loader needs of its session.

    Attributes:
        world: The ranks.
        device: Where batches are moved to; those on the CPU stay as the workers made them.
        tally: Records the batches that each loop yields.
        seed: Seed of the order and of the samples' own randomness.
        accumulate: Batches of a group.
        cpus: CPUs that the ranks of this node may use.
        total: Returns the sums of ints over all ranks; for sharded streams.
        first_of: Returns the value under a key that a rank has set first; nobody waits for another rank in it.
        in_training_mode: Returns whether a model of the session is in training mode; None without a model.
        has_optimizer: Returns whether the session has an optimizer.
        forward_meets: Returns whether every forward of a model needs all ranks, as with fsdp.
    """

    world: World
    device: torch.device
    tally: Tally
    seed: int = 0
    accumulate: int = 1
    cpus: int = 1
    total: Callable[[list[int]], list[int]] = list
    first_of: Callable[[str, str], str] = lambda _, value: value
    in_training_mode: Callable[[], bool | None] = lambda: None
    has_optimizer: Callable[[], bool] = lambda: False
    forward_meets: Callable[[], bool] = lambda: False
