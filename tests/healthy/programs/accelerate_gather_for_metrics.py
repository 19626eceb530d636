"""Accelerate: evaluation over an odd number of samples (accelerate/examples: nlp_example)."""

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

held_out = accelerator.prepare(
    DataLoader(TensorDataset(torch.randn(101, 8), torch.randn(101, 1)), 16)
)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
    model.eval()
    errors = []
    for x, y in held_out:
        with torch.no_grad():
            errors.append(accelerator.gather_for_metrics((model(x) - y).square()))
    assert len(torch.cat(errors)) == 101
    model.train()
accelerator.end_training()
