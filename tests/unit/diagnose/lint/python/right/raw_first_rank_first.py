"""Rank 0 of each node goes first: barriers on both sides of what is done once, in a context manager and bare."""

import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

LOCAL_RANK = int(os.getenv("LOCAL_RANK", -1))
RANK = int(os.getenv("RANK", -1))


@contextmanager
def zero_first(local_rank):
    if local_rank not in [-1, 0]:
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])


def load():
    if LOCAL_RANK not in (-1, 0):
        dist.barrier()
    weights = torch.hub.load_state_dict_from_url("https://example.org/weights.pt", model_dir="/tmp")
    if LOCAL_RANK == 0:
        dist.barrier()
    return weights


def train(epochs=5):
    if LOCAL_RANK != -1:
        torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group("nccl" if dist.is_nccl_available() else "gloo")
    with zero_first(LOCAL_RANK):
        dataset = datasets.MNIST("/tmp/mnist", download=True, transform=transforms.ToTensor())
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
    model.load_state_dict(load())
    if RANK != -1:
        model = DDP(model, device_ids=[LOCAL_RANK], output_device=LOCAL_RANK)
    sampler = None if RANK == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        if RANK != -1:
            loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            nn.functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
        if RANK in {-1, 0}:
            bare = model.module if hasattr(model, "module") else model
            torch.save({"epoch": epoch, "model": bare.state_dict()}, "last.pt")


if __name__ == "__main__":
    train()
