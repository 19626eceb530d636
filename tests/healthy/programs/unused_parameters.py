"""A model of which a part is not used in each step, found by DDP."""

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


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x):
        return self.left(x) if torch.rand(()) < 0.5 else self.right(x)


model = DistributedDataParallel(Gated(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
