"""Training in Hugging Face Accelerate, right unless ``--mistake`` names what is wrong with it."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--mistake", default="")
mistake = parser.parse_args().mistake

accelerator = Accelerator(cpu=True)
torch.manual_seed(7)
features = torch.randn(192, 8, generator=torch.Generator().manual_seed(1))
labels = (features.sum(dim=1) > 0).long()
train = DataLoader(TensorDataset(features, labels), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(features[:101] + 0.5, labels[:101]), batch_size=16)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
steps = 3 * len(train)
model, optimizer, train, held_out = accelerator.prepare(net, optimizer, train, held_out)
if mistake == "scheduler":
    steps = 3 * len(train)
scheduler = accelerator.prepare(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps))

for epoch in range(3):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        scheduler.step()
    model.eval()
    right, count = torch.zeros(1), torch.zeros(1)
    with torch.no_grad():
        for x, y in held_out:
            predicted = model(x).argmax(1)
            if mistake not in ("padded", "own-share"):
                predicted, y = accelerator.gather_for_metrics((predicted, y))
            right += (predicted == y).sum()
            count += len(y)
    if mistake == "padded":
        right, count = accelerator.reduce(right), accelerator.reduce(count)
    accelerator.print(f"epoch {epoch}: accuracy {(right / count).item():.4f}")
accelerator.end_training()
