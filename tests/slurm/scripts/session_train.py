"""Training in a Session, by whomever it is started. What a test adds goes to the places marked "at:"."""

import os
import time  # noqa: F401  # for the places

import torch
from torch import nn
from torch.utils.data import Dataset

import paceline

length, batch_size, epochs = 32, 32, 3


def leave(name, text):
    """Write a file whole: a test waits for its line feed."""
    with open(name, "w") as file:
        file.write(f"{text}\n")


# at: settings


class Samples(Dataset):
    def __len__(self):
        return length

    def __getitem__(self, index):
        return torch.full((16,), (index % 7) / 7), index % 4


def main():
    # at: start
    session = paceline.Session(seed=0)
    rank, world_size = session.rank, session.world_size  # noqa: F841  # for the places
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model, optimizer = session.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = session.loader(Samples(), batch_size=batch_size, shuffle=True)
    # at: model
    session.restore()

    for epoch in session.epochs(epochs):  # noqa: B007  # for the places
        for x, y in loader:
            step = session.step  # noqa: F841  # for the places
            # at: step
            loss = nn.functional.cross_entropy(model(x), y)
            session.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if session.step == 3:
                leave(f"up-{rank}", os.getpid())
        # at: epoch
    # at: end


if __name__ == "__main__":
    main()
