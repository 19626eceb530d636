"""Rank 0 prepares the data while the others wait in a barrier, then all read it."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
if rank == 0:
    time.sleep(4)
    torch.save(torch.randn(256, 8), "data.pt")
dist.barrier()
data = TensorDataset(torch.load("data.pt", weights_only=True), torch.zeros(256, 1))
sampler = DistributedSampler(data)

model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
