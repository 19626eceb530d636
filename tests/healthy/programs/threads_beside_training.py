"""A thread logs and another prefetches while the main thread trains."""

import queue
import threading

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

batches, stop = queue.Queue(maxsize=4), threading.Event()


def prefetch():
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in DataLoader(data, 16, sampler=sampler):
            batches.put(batch)
    batches.put(None)


def log():
    while not stop.wait(0.1):
        pass


threads = [threading.Thread(target=prefetch), threading.Thread(target=log)]
for thread in threads:
    thread.start()
while (batch := batches.get()) is not None:
    x, y = batch
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
stop.set()
for thread in threads:
    thread.join()

dist.destroy_process_group()
