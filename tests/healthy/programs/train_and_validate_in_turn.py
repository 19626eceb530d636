"""A loader for training, one for validation, evaluated within the epoch too."""

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

model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

held_out = TensorDataset(torch.randn(60, 8), torch.randn(60, 1))
shares = DataLoader(held_out, 10, sampler=DistributedSampler(held_out, shuffle=False))


@torch.no_grad()
def validate():
    model.eval()
    error = sum((model(x) - y).square().sum() for x, y in shares)
    dist.all_reduce(error)
    model.train()


for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(DataLoader(data, 16, sampler=sampler)):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        if number == 4:
            validate()
    validate()

dist.destroy_process_group()
