"""A pipeline of two stages with send and recv in both directions, all ranks read the data."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
stage = nn.Linear(8, 8) if rank == 0 else nn.Linear(8, 1)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
for _ in range(2):
    for x, y in DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        if rank == 0:
            hidden = stage(x)
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(len(x), 8)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            (stage(hidden) - y).square().mean().backward()
            dist.send(hidden.grad, 0)
        optimizer.step()

dist.destroy_process_group()
