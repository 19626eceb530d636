"""Gradient accumulation with no_sync (PyTorch documentation of DistributedDataParallel)."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
sampler = DistributedSampler(data)

model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(DataLoader(data, 8, sampler=sampler)):
        last = number % 4 == 3
        with nullcontext() if last else model.no_sync():
            ((model(x) - y).square().mean() / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

dist.destroy_process_group()
