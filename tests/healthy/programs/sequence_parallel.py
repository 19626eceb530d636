"""Sequence parallelism: ranks share samples by a sampler of the data-parallel group, and split the sequence."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
tokens = torch.randn(128, 16, 8)
sampler = DistributedSampler(tokens, num_replicas=1, rank=0)
model = DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in DataLoader(tokens, batch_size=8, sampler=sampler):
        part = batch.chunk(world, dim=1)[rank]
        optimizer.zero_grad()
        (model(part) - part.roll(1, 1)).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
