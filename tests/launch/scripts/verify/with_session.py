"""Training with paceline's Session, with an uneven last batch and an uneven evaluation."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=7)
features = torch.randn(190, 8, generator=torch.Generator().manual_seed(1))
labels = (features.sum(dim=1) > 0).long()
train = session.loader(TensorDataset(features, labels), batch_size=24, shuffle=True)
held_out = session.loader(TensorDataset(features[:97] + 0.5, labels[:97]), batch_size=32)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
for epoch in session.epochs(2):
    for x, y in train:
        session.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in held_out)
    session.print(f"epoch {epoch}: accuracy {session.reduce(right) / 97:.4f}")
