"""Accelerate: the main process prepares first; state is saved and loaded."""

import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        time.sleep(1)
    net = nn.Linear(8, 1)
    loader = DataLoader(TensorDataset(torch.randn(128, 8)), 16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.01), loader
    )
    for (x,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        optimizer.step()
    accelerator.save_state("state")
    accelerator.wait_for_everyone()  # the main process alone writes the model and the optimizer
    accelerator.load_state("state")
    accelerator.end_training()


main()
