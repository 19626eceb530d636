"""Fabric: the loop of its documentation (Lightning Fabric: convert PyTorch code to Fabric)."""

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

for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        fabric.backward((model(x) - y).square().mean())
        optimizer.step()
fabric.save("state.ckpt", {"model": model, "optimizer": optimizer})
