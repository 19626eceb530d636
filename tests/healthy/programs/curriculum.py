"""A curriculum: another subset, in order, in each epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(300, 8).sort(0).values

model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(3):
    data = TensorDataset(x[: 100 * (epoch + 1)])
    for (inputs,) in DataLoader(data, 10, sampler=DistributedSampler(data, shuffle=False)):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
