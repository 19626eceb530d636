"""Classify scikit-learn's 1,797 handwritten digits with paceline's Session.

    python examples/digits.py
    torchrun --standalone --nproc-per-node 2 examples/digits.py
    paceline run --nproc-per-node 2 examples/digits.py
    paceline submit --nodes 2 examples/digits.py

At least 95 % of the 360 held-out digits are classified correctly, on CPUs and on GPUs. With
--run-dir DIR behind `paceline run` it resumes from its last checkpoint there.
"""

import argparse
import sys

import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
session = paceline.Session(seed=args.seed)

digits = load_digits()
x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16  # [1797, 1, 8, 8], 0 to 1
y = torch.tensor(digits.target)
held_out = torch.arange(len(x)) % 5 == 0  # every fifth sample
train = session.loader(TensorDataset(x[~held_out], y[~held_out]), batch_size=32, shuffle=True)
test = session.loader(TensorDataset(x[held_out], y[held_out]), batch_size=256)

model = nn.Sequential(
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
model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters()))
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, args.epochs * len(train))
session.register(scheduler=scheduler)
session.restore("latest")
console, silent = Console(stderr=True), not (session.is_main and sys.stderr.isatty())

for epoch in session.epochs(args.epochs):
    for images, labels in track(train, f"epoch {epoch + 1}", console=console, disable=silent):
        session.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    with torch.no_grad():
        correct = sum(int((model(images).argmax(dim=1) == labels).sum()) for images, labels in test)
    samples = len(test.dataset)
    accuracy = session.reduce(correct) / samples  # exact: nothing is padded or counted twice
    session.log({"test/accuracy": accuracy}, step=epoch)
    session.print(f"epoch {epoch + 1}: {samples} samples, accuracy {100 * accuracy:.2f} %")
    session.save(metric=accuracy)
