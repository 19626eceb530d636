"""A line that is fitted with a learning rate: prints what it has done, so that whose model it is can be seen."""

import argparse
import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=float(os.environ.get("WHOSE_LR", "0.1")))
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--folder")
parser.add_argument("--name", default="")
parser.add_argument("--folds", type=int, default=1)
parser.add_argument("--nap", type=float, default=0)
options = parser.parse_args()
for fold in range(options.folds):
    session = paceline.Session(seed=0, run_dir=options.folder)
    x = torch.arange(8, dtype=torch.float64).reshape(8, 1) / 8
    model = nn.Linear(1, 1).double()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=options.lr))
    loader = session.loader(TensorDataset(x, 2 * x), batch_size=8)
    session.restore("latest")
    steps = 0
    for _epoch in session.epochs(options.epochs):
        for rows, target in loader:
            if session.backward((model(rows) - target).square().mean()):
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        if options.nap:
            time.sleep(options.nap)
        session.save()
    weight = session.unwrap(model).weight.item()
    session.print(f"fold {fold} lr {options.lr}: {steps} steps made here, weight {weight:.6f}")
