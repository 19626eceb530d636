"""A training on two ranks or one, held back by what its first argument names."""

import fcntl
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BRAKE = sys.argv[1]
BATCH = 4
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
LOCK = Path(sys.argv[2]).open("a")  # noqa: SIM115  # open as long as the process lives
draw = random.Random(RANK)


def shared(seconds):
    """Use what the ranks of a machine share, one after the other."""
    fcntl.flock(LOCK, fcntl.LOCK_EX)
    time.sleep(seconds)
    fcntl.flock(LOCK, fcntl.LOCK_UN)


class Samples(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if BRAKE == "slow-data" and RANK == 1:
            time.sleep(0.006)
        if BRAKE == "data":
            time.sleep(0.015)
        if BRAKE == "shared-disk":
            shared(0.006)
        return torch.ones(64)


class Work(torch.autograd.Function):
    # Sleeps for the computing: two ranks may share a CPU that others use too.
    @staticmethod
    def forward(ctx, x):
        seconds = {"tiny": 0.0, "tiny-log": 0.001, "uneven": draw.uniform(0.005, 0.05)}
        time.sleep(seconds.get(BRAKE, 0.02))
        if BRAKE == "slow-forward" and RANK == 1:
            time.sleep(0.015)
        if BRAKE == "shared-memory":
            time.sleep(0.01 * WORLD)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if BRAKE == "slow-backward" and RANK == 1:
            time.sleep(0.015)
        return gradient


outputs = 25_000 if BRAKE == "link" else 1  # gradients of 6.5 MB, or of 260 bytes
model = DistributedDataParallel(nn.Linear(64, outputs))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
samples = Samples()
for x in DataLoader(samples, BATCH, sampler=DistributedSampler(samples)):
    optimizer.zero_grad()
    Work.apply(model(x)).sum().backward()
    if BRAKE == "slow-optimizer" and RANK == 1:
        time.sleep(0.015)
    optimizer.step()
    if RANK == 0 and (BRAKE == "tiny-log" or (BRAKE == "log" and WORLD > 1)):
        time.sleep(0.01)
    if BRAKE == "code-for-each-rank":
        time.sleep(0.01 * WORLD)
