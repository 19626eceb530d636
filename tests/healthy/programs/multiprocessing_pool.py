"""A pool of processes prepares the data on each rank, started by forkserver."""

import math
import multiprocessing

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        numbers = pool.map(math.sqrt, range(100))
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in numbers[rank::2]:
        optimizer.zero_grad()
        model(torch.tensor([[number]]) / 10).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
