"""Cross-validation: five folds, each with a model, a sampler and an evaluation."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, y = torch.randn(200, 8), torch.randn(200, 1)
for fold in range(5):
    held = torch.arange(200) % 5 == fold
    train = TensorDataset(x[~held], y[~held])
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = DistributedSampler(train)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(train, 16, sampler=sampler):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        error = (model(x[held][rank::world]) - y[held][rank::world]).square().sum()
    dist.all_reduce(error)

dist.destroy_process_group()
