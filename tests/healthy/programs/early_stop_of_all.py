"""All ranks leave the loop together when a shared flag says so."""

import sys

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(100):
    sampler.set_epoch(epoch)
    total = torch.zeros(1)
    for x, y in DataLoader(data, 32, sampler=sampler):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    flag = torch.tensor([float(epoch >= 3 and rank == 0)])
    dist.broadcast(flag, 0)
    if flag.item():
        break
dist.destroy_process_group()
sys.exit(0)
