"""Uneven inputs under Join (PyTorch tutorial: distributed training with uneven inputs)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs = [torch.tensor([1.0]) for _ in range(10 + rank)]
with Join([model]):
    for x in inputs:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

dist.destroy_process_group()
