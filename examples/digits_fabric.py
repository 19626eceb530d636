"""Classify scikit-learn's 1,797 handwritten digits with Lightning Fabric.

    python examples/digits_fabric.py
    torchrun --standalone --nproc-per-node 2 examples/digits_fabric.py
    paceline run --nproc-per-node 2 examples/digits_fabric.py
    paceline submit --nodes 2 examples/digits_fabric.py

At least 95 % of the 360 held-out digits are classified correctly, on CPUs and on GPUs.
"""

import os

import torch
from lightning.fabric import Fabric, seed_everything
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

# The launcher decides how many ranks there are; without these arguments a CPU is one rank.
devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
num_nodes = int(os.environ.get("WORLD_SIZE", "1")) // devices
fabric = Fabric(accelerator="auto", devices=devices, num_nodes=num_nodes)
fabric.launch()
seed_everything(0, verbose=False)

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8], 0 to 1
y = torch.tensor(digits.target)
held_out = torch.arange(len(x)) % 5 == 0  # every fifth sample
train_set, test_set = (TensorDataset(x[part], y[part]) for part in (~held_out, held_out))
train_loader = DataLoader(train_set, batch_size=32 // fabric.world_size, shuffle=True)
train_loader = fabric.setup_dataloaders(train_loader)
# Fabric's sampler would repeat samples until all ranks have equally many; here each counts once.
test_share = Subset(test_set, range(fabric.global_rank, len(test_set), fabric.world_size))
test_loader = DataLoader(test_share, batch_size=256)
test_loader = fabric.setup_dataloaders(test_loader, use_distributed_sampler=False)

net = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=2e-3))

for epoch in range(10):
    for images, labels in train_loader:
        optimizer.zero_grad()
        fabric.backward(cross_entropy(model(images), labels))
        optimizer.step()
    correct = torch.zeros((), dtype=torch.long, device=fabric.device)
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (net(images).argmax(dim=1) == labels).sum()
    percent = 100 * fabric.all_reduce(correct, reduce_op="sum").item() / len(test_set)
    fabric.print(f"epoch {epoch + 1}: {len(test_set)} samples, accuracy {percent:.2f} %")
