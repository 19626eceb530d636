"""Training saved and continued within one script, with model, optimizer and scheduler."""

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


def train(epochs, state=None):
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    for name, values in (state or {}).items():
        parts[name].load_state_dict(values)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, 16, sampler=sampler):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        scheduler.step()
    return {name: part.state_dict() for name, part in parts.items()}


if rank == 0:
    print("first half")
torch.save(train(range(2)), f"half-{rank}.pt")
train(range(2, 4), torch.load(f"half-{rank}.pt", weights_only=True))

dist.destroy_process_group()
