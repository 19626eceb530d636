"""Training that is held back by what its first argument names: data, slow, tiny, link or nothing.

Further arguments: samples of a batch, and samples of the dataset.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

brake = sys.argv[1]
batch = int(sys.argv[2]) if len(sys.argv) > 2 else 4
length = int(sys.argv[3]) if len(sys.argv) > 3 else 1000
dist.init_process_group("gloo")


class Samples(Dataset):
    def __len__(self):
        return length

    def __getitem__(self, index):
        time.sleep(0.015 if brake == "data" else 0)
        return torch.ones(64)


class Work(torch.autograd.Function):
    # Sleeps for the computing: two ranks may share a CPU that others use too.
    @staticmethod
    def forward(ctx, x):
        slow = brake == "slow" and dist.get_rank() == 1
        time.sleep(0.0 if brake == "tiny" else 0.04 if slow else 0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


outputs = 25_000 if brake == "link" else 1  # gradients of 6.5 MB, or of 260 bytes
model = DistributedDataParallel(nn.Linear(64, outputs))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
samples = Samples()
for x in DataLoader(samples, batch, sampler=DistributedSampler(samples)):
    optimizer.zero_grad()
    Work.apply(model(x)).sum().backward()
    optimizer.step()
