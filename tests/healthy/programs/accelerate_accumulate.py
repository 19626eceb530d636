"""Accelerate: accumulation with a scheduler (accelerate/examples: gradient_accumulation)."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
net = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(net.parameters())
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
loader = DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
accelerator.end_training()
