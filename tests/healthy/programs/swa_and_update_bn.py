"""Stochastic weight averaging, and batch norm updated over the padded training loader (torch.optim.swa_utils)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(101, 8), torch.randn(101, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
model = DistributedDataParallel(net)
averaged = torch.optim.swa_utils.AveragedModel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    averaged.update_parameters(net)
    scheduler.step()
torch.optim.swa_utils.update_bn(loader, averaged)
mean = averaged.module[1].running_mean
dist.all_reduce(mean)

dist.destroy_process_group()
