"""Evaluation with drop_last and the rest by all ranks (pytorch/examples: imagenet)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
train = TensorDataset(torch.randn(200, 8), torch.randint(3, (200,)))
val = TensorDataset(torch.randn(101, 8), torch.randint(3, (101,)))
model = DistributedDataParallel(nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sampler = DistributedSampler(train)
shares = DistributedSampler(val, shuffle=False, drop_last=True)
rest = Subset(val, range(len(shares) * world, len(val)))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(train, 16, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    figures = torch.zeros(2)
    with torch.no_grad():
        for x, y in DataLoader(val, 16, sampler=shares):
            figures += torch.tensor([(model(x).argmax(1) == y).sum(), len(x)])
        dist.all_reduce(figures)
        for x, y in DataLoader(rest, 16):
            figures += torch.tensor([(model(x).argmax(1) == y).sum(), len(x)])
    assert figures[1] == len(val)
    model.train()

dist.destroy_process_group()
