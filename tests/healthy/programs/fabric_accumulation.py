"""Fabric: accumulation with no_backward_sync, clipping, metrics reduced."""

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

for number, (x, y) in enumerate(loader):
    accumulates = number % 2 == 0
    with fabric.no_backward_sync(model, enabled=accumulates):
        loss = (model(x) - y).square().mean()
        fabric.backward(loss)
    if not accumulates:
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    fabric.all_reduce(loss.detach())
