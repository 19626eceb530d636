"""Training in Lightning Fabric, right unless ``--mistake`` names what is wrong with it."""

import argparse
import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--mistake", default="")
mistake = parser.parse_args().mistake

world = int(os.environ["WORLD_SIZE"])
fabric = Fabric(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto")
fabric.launch()
fabric.seed_everything(7 + (fabric.global_rank if mistake == "other-seeds" else 0))
features = torch.randn(192, 8, generator=torch.Generator().manual_seed(1))
labels = (features.sum(dim=1) > 0).long()
train = DataLoader(TensorDataset(features, labels), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(features[:101] + 0.5, labels[:101]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if mistake != "other-seeds":
    model, optimizer = fabric.setup(model, optimizer)
if mistake == "no-sampler":
    torch.manual_seed(fabric.global_rank)
else:
    train = fabric.setup_dataloaders(train)
if mistake in ("padded", "own-share"):
    held_out = fabric.setup_dataloaders(held_out)

for epoch in range(3):
    for number, (x, y) in enumerate(train):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(x), y))
        if mistake == "other-seeds":
            for parameter in model.parameters():
                parameter.grad = fabric.all_reduce(parameter.grad)
        optimizer.step()
        if mistake == "drift" and fabric.global_rank == 1 and (epoch, number) == (0, 2):
            with torch.no_grad():
                next(iter(model.parameters())).mul_(1.01)
    totals = torch.zeros(2)
    with torch.no_grad():
        for x, y in held_out:
            totals += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    if mistake == "padded":
        totals = fabric.all_reduce(totals, reduce_op="sum")
    fabric.print(f"epoch {epoch}: accuracy {totals[0] / totals[1]:.4f}")
