"""Local steps, and parameters averaged now and then (torch.distributed.algorithms.model_averaging)."""

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
sampler = DistributedSampler(data)

net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
averager = averagers.PeriodicModelAverager(period=4, warmup_steps=2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
        averager.average_parameters(net.parameters())

dist.destroy_process_group()
