"""Local SGD: the ranks' parameters differ between exchanges, and are evaluated and saved as one model."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

session = paceline.Session(seed=0, strategy=paceline.LocalSGD(every=7))
torch.manual_seed(0)
x = torch.randn(400, 8)
data = TensorDataset(x, x.sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
train = session.loader(data, 20, shuffle=True)
session.restore()
for _ in session.epochs(4):
    for inputs, targets in train:
        if session.backward(nn.functional.mse_loss(model(inputs), targets)):
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x), data.tensors[1])
    model.train()
    session.save(metric=loss, mode="min")
