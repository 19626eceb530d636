"""Two models, each averaged in a process group of its own beside the world."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
one, other = dist.new_group(), dist.new_group()
left = DistributedDataParallel(nn.Linear(8, 4), process_group=one)
right = DistributedDataParallel(nn.Linear(8, 4), process_group=other)
optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()])
data = TensorDataset(torch.randn(256, 8))
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (x,) in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        (left(x) - right(x)).square().mean().backward()
        optimizer.step()
    dist.barrier(group=one)

dist.destroy_process_group()
