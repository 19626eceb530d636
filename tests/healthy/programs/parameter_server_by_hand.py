"""Rank 0 collects gradients and hands out parameters, the other ranks compute."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
weights = torch.zeros(8)
for _ in range(20):
    dist.broadcast(weights, 0)
    gradient = torch.zeros(8) if rank == 0 else weights - torch.arange(8.0)
    dist.reduce(gradient, 0)
    if rank == 0:
        weights -= 0.5 * gradient / (world - 1)

dist.destroy_process_group()
