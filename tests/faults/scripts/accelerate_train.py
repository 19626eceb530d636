"""Training in Hugging Face Accelerate. What a fault is made of goes to the places marked "at:"."""

import os
import time

import torch
from accelerate import Accelerator
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

rank = int(os.environ["RANK"])
world_size = int(os.environ["WORLD_SIZE"])
length, batch_size, epochs, workers, shuffle, shared = 128, 8, 3, 0, True, True
persistent = True  # a fork for every epoch may deadlock in some versions of Python


def leave(name, text):
    """Write a file whole: a test waits for its line feed."""
    with open(name, "w") as file:
        file.write(f"{text}\n")


def broke():
    """Leave the moment from which the fault can be known."""
    if not os.path.exists(f"broke-{rank}"):
        leave(f"broke-{rank}", time.time())


# at: settings


class Samples(Dataset):
    def __len__(self):
        return length

    def __getitem__(self, index):
        # at: sample
        return torch.full((16,), (index % 7) / 7), index % 4


def main():
    # at: start
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    # at: model
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    samples = Samples()
    # at: data
    loader = DataLoader(
        samples,
        batch_size,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
    )
    model, optimizer = accelerator.prepare(net, optimizer)
    if shared:
        loader = accelerator.prepare(loader)

    step = 0
    for epoch in range(epochs):  # noqa: B007  # for the places
        for x, y in loader:
            # at: step
            loss = nn.functional.cross_entropy(model(x), y)
            # at: loss
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step == 3:
                leave(f"up-{rank}", os.getpid())
        # at: epoch
    # at: end
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
