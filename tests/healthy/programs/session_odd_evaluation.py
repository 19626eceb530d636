"""paceline.Session: evaluation over an odd number of samples, figures reduced."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
net = nn.Linear(8, 1)
model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))

held_out = TensorDataset(torch.randn(101, 8), torch.randn(101, 1))
train, shares = (
    session.loader(data, batch_size=32, shuffle=True),
    session.loader(held_out, batch_size=16),
)
for epoch in session.epochs(2):
    for x, y in train:
        session.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        error = sum(float((model(x) - y).square().sum()) for x, y in shares)
    session.log({"error": session.reduce(error) / len(held_out)}, step=epoch)
