"""Batches from a generator, no DataLoader at all."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def batches(count):
    random = torch.Generator().manual_seed(rank)
    for _ in range(count):
        yield torch.randn(8, 8, generator=random)


for _epoch in range(3):
    for x in batches(20):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
