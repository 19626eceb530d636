"""Not a script: functions for others to call on the ranks that they choose."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler


def get_rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def save_checkpoint(state, path):
    torch.save(state, path)


def save_on_master(*args, **kwargs):
    if get_rank() == 0:
        torch.save(*args, **kwargs)


def make_loader(dataset, batch_size, *, distributed, shuffle=True):
    sampler = DistributedSampler(dataset, shuffle=shuffle) if distributed else None
    return DataLoader(
        dataset, batch_size=batch_size, sampler=sampler, shuffle=shuffle and sampler is None
    )


def synchronize():
    if not dist.is_available() or not dist.is_initialized():
        return
    if dist.get_world_size() == 1:
        return
    dist.barrier()


def mean_over_ranks(value: torch.Tensor) -> torch.Tensor:
    if dist.get_world_size() < 2:
        return value
    with torch.no_grad():
        dist.reduce(value, dst=0)
        if get_rank() == 0:
            value /= dist.get_world_size()
    return value
