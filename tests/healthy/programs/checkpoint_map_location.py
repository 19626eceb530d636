"""Rank 0 saves, all wait and load (PyTorch tutorial: getting started with DDP, save and load)."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(10, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
if rank == 0:
    torch.save(model.state_dict(), "toy.checkpoint")
dist.barrier()
model.load_state_dict(torch.load("toy.checkpoint", map_location="cpu", weights_only=True))
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    optimizer.step()
dist.barrier()
if rank == 0:
    os.remove("toy.checkpoint")

dist.destroy_process_group()
