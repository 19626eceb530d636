"""datasets: a table mapped on rank 0 first, then read by all through a sampler."""

import torch
import torch.distributed as dist
from datasets import Dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
if dist.get_rank() > 0:
    dist.barrier()
table = Dataset.from_dict({"x": [[float(index)] * 4 for index in range(128)]})
table = table.map(lambda row: {"y": [row["x"][0] / 128]}).with_format("torch")
if dist.get_rank() == 0:
    dist.barrier()
sampler = DistributedSampler(table)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch in DataLoader(table, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        (model(batch["x"]) - batch["y"]).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
