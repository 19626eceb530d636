"""paceline.Session: one rank prepares while the others wait, longer than a usual step."""

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
net = nn.Linear(8, 1)
model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))

session.once(lambda: time.sleep(3))
train = session.loader(data, batch_size=32, shuffle=True)
for _ in session.epochs(2):
    for x, y in train:
        session.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
