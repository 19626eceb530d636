"""A model compiled by inductor into one graph, static shapes."""

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

net = nn.Linear(8, 1)
model = DistributedDataParallel(net)
forward = torch.compile(lambda x: x.sin() * 2, fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, 16, sampler=sampler):
    optimizer.zero_grad()
    (model(forward(x)) - y).square().mean().backward()
    optimizer.step()

dist.destroy_process_group()
