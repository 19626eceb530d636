"""A loop of one's own on Lightning Fabric."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()  # starts nothing where a launcher has already started the ranks

    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(dim=1)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True))

    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()

    if fabric.is_global_zero:
        with torch.no_grad():
            final = nn.functional.cross_entropy(net(x), y)
        print(f"ranks {fabric.world_size}")
        print(f"final loss {final.item()!r}")


if __name__ == "__main__":
    main()
