"""paceline.Session: training, checkpoints and continuing."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
net = nn.Linear(8, 1)
model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))

train = session.loader(data, batch_size=64, shuffle=True)
session.restore("latest")
for _epoch in session.epochs(3):
    for x, y in train:
        if session.backward((model(x) - y).square().mean()):
            optimizer.step()
            optimizer.zero_grad()
    session.save()
