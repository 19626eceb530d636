"""Knowledge distillation from a frozen teacher (PyTorch tutorial: knowledge distillation)."""

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

teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).eval().requires_grad_(False)
student = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.Adam(student.parameters())
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, _ in DataLoader(data, 16, sampler=sampler):
        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(1)
        optimizer.zero_grad()
        nn.functional.kl_div(
            (student(x) / 2).log_softmax(1), soft, reduction="batchmean"
        ).backward()
        optimizer.step()

dist.destroy_process_group()
