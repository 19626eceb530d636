"""paceline.Session: groups of batches with a ragged end."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=0, accumulate=3)
data = TensorDataset(torch.randn(250, 8), torch.randn(250, 1))
net = nn.Linear(8, 1)
model, optimizer = session.setup(net, torch.optim.AdamW(net.parameters()))
train = session.loader(data, batch_size=16, shuffle=True)
for _ in session.epochs(2):
    for x, y in train:
        if session.backward((model(x) - y).square().mean()):
            optimizer.step()
            optimizer.zero_grad()
