"""LBFGS: several evaluations of a closure a step, the whole share as one batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, y = torch.randn(128, 8)[rank::world], torch.randn(128, 1)[rank::world]
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / world


for _ in range(5):
    optimizer.step(closure)

dist.destroy_process_group()
