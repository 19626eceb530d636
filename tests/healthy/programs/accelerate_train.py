"""Accelerate: the loop of its quick tour."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
net = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters())
model, optimizer, loader = accelerator.prepare(
    net, optimizer, DataLoader(data, batch_size=32, shuffle=True)
)

for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
accelerator.wait_for_everyone()
accelerator.save_model(model, "model")
accelerator.end_training()
