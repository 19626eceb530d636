"""Predictions over a padded sampler, gathered as objects and cut to the dataset."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.arange(101.0).reshape(101, 1))
loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data, shuffle=False))
with torch.no_grad():
    predictions = torch.cat([x * 2 for (x,) in loader])
shares = [None] * world
dist.all_gather_object(shares, predictions.tolist())
whole = [value for group in zip(*shares, strict=True) for value in group][: len(data)]
assert whole == [[2.0 * index] for index in range(101)]

dist.destroy_process_group()
