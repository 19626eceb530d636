"""Ranks started by mp.spawn: what stands outside the worker runs once."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def demo_checkpoint(rank, world_size):
    setup(rank, world_size)
    model = DDP(nn.Linear(10, 5))
    path = tempfile.gettempdir() + "/model.checkpoint"
    if rank == 0:
        torch.save(model.module.state_dict(), path)
    dist.barrier()
    model.module.load_state_dict(torch.load(path))
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    optimizer.zero_grad()
    model(torch.randn(20, 10)).sum().backward()
    optimizer.step()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


def run_demo(demo, world_size):
    mp.spawn(demo, args=(world_size,), nprocs=world_size, join=True)


if __name__ == "__main__":
    torch.save(nn.Linear(10, 5).state_dict(), "start.pt")
    run_demo(demo_checkpoint, 2)
