"""Gradients averaged by hand over a partition per rank (PyTorch tutorial: writing distributed applications)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 8), torch.randint(4, (512,)))
order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1234)).tolist()
part = Subset(data, order[rank::world])
loader = DataLoader(part, batch_size=128 // world, shuffle=True)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)
for _ in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()

dist.destroy_process_group()
