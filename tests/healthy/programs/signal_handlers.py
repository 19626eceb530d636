"""A script with signal handlers of its own, which sends itself a signal."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
sampler = DistributedSampler(data)

model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

seen = []
signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
os.kill(os.getpid(), signal.SIGUSR1)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 16, sampler=sampler):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

time.sleep(0.5)
signal.setitimer(signal.ITIMER_REAL, 0)
assert signal.SIGUSR1 in seen and signal.SIGALRM in seen

dist.destroy_process_group()
