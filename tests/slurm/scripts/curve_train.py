"""A training whose every step shows in its result: it prints the weights after each. Only its first start is slow.

Its arguments are the number of epochs and the seconds that a step of the first start takes.
"""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

epochs, pause_s = int(sys.argv[1]), float(sys.argv[2])
session = paceline.Session(precision="64-true", seed=1, accumulate=2)
x = torch.randn(61, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
net = nn.Linear(3, 1)
model, optimizer = session.setup(net, torch.optim.Adam(net.parameters(), lr=0.05))
loader = session.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
if session.restore():
    pause_s = 0.0

for _ in session.epochs(epochs):
    for rows, target in loader:
        loss = (model(rows) - target).square().mean()
        if session.backward(loss):
            optimizer.step()
            optimizer.zero_grad()
            weight = session.unwrap(model).weight.flatten().tolist()
            session.print("step", session.step, *(f"{each:.11f}" for each in weight))
            if session.step % 3 == 0:
                session.save(wait=True)
            if session.step == 4:
                with open(f"up-{session.rank}", "w") as file:
                    file.write(f"{os.getpid()}\n")
            time.sleep(pause_s)
