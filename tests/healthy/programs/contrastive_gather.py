"""A contrastive loss over features gathered from all ranks (after CLIP)."""

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

model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, _ in DataLoader(data, 16, sampler=sampler, drop_last=True):
        own = nn.functional.normalize(model(torch.cat([x, x + 0.1 * torch.randn_like(x)])))
        every = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(every, own.detach())
        every[rank] = own
        one, other = torch.stack(every).chunk(2, dim=1)
        logits = one.flatten(0, 1) @ other.flatten(0, 1).T / 0.1
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, torch.arange(len(logits))).backward()
        optimizer.step()

dist.destroy_process_group()
