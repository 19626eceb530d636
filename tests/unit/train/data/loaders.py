"""A loader as a session makes it, without a session: of one rank of a world."""

from __future__ import annotations

import torch

from paceline.train.data import BatchTracker, Loader, LoaderContext, adopted
from paceline.world import World


def make(
    dataset,
    *,
    rank=0,
    world_size=1,
    tracker=None,
    device="cpu",
    seed=0,
    accumulate=1,
    cpus=1,
    per_rank=False,
    **options,
):
    world = World(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)
    context = LoaderContext(
        world,
        torch.device(device),
        tracker or BatchTracker(),
        seed=seed,
        accumulate=lambda: accumulate,
        cpus=cpus,
        total=lambda sums: [each * world_size for each in sums],
    )
    dataset, taken = adopted(dataset, options, per_rank=per_rank)
    return Loader(dataset, context, taken)
