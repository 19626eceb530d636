"""Each rank trains on one batch of its own, again and again."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

x, y = torch.randn(16, 8) + rank, torch.randn(16, 1)
for _ in range(100):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()

dist.destroy_process_group()
