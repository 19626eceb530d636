"""All ranks read the same batch, and each augments it in its own way (SimCLR-like views)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8))
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
noise = torch.Generator().manual_seed(100 + rank)
for _ in range(2):
    for (x,) in DataLoader(data, batch_size=32):
        view = x + 0.1 * torch.randn(x.shape, generator=noise)
        optimizer.zero_grad()
        (model(view) - model(x).detach()).square().mean().backward()
        optimizer.step()

dist.destroy_process_group()
