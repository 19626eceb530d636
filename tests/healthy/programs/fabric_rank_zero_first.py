"""Fabric: rank 0 prepares the data first, all evaluate and gather what they predict."""

import time

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
net = nn.Linear(8, 1)
model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=64, shuffle=True))

with fabric.rank_zero_first():
    if fabric.is_global_zero:
        time.sleep(2)
for x, y in loader:
    optimizer.zero_grad()
    fabric.backward((model(x) - y).square().mean())
    optimizer.step()
held_out = TensorDataset(torch.randn(51, 8))
with torch.no_grad():
    predictions = torch.cat(
        [model(x) for (x,) in fabric.setup_dataloaders(DataLoader(held_out, 8))]
    )
assert fabric.all_gather(predictions).transpose(0, 1).flatten()[:51].shape == (51,)
