"""torch.compile around the model that DDP wraps."""

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

net = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), backend="aot_eager")
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
