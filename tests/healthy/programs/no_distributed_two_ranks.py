"""Two ranks that never meet: a script without torch.distributed, started twice."""

import os

import torch
from torch import nn

torch.manual_seed(int(os.environ["RANK"]))
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(50):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
