"""A loop of one's own on Hugging Face Accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)

    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(dim=1)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True),
    )

    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()

    if accelerator.is_main_process:
        with torch.no_grad():
            final = nn.functional.cross_entropy(net(x), y)
        print(f"ranks {accelerator.num_processes}")
        print(f"final loss {final.item()!r}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
