"""A script that knows nothing of ranks, started on one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(101, 8), torch.randn(101, 1))
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(3):
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
