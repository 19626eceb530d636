"""A GAN: two models, two optimizers, two backwards a step (PyTorch tutorial: DCGAN)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8))
generator, critic = (
    nn.Linear(4, 8),
    nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)),
)
generator = DistributedDataParallel(generator)
critic = DistributedDataParallel(critic, broadcast_buffers=False)
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
c_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
loss = nn.BCEWithLogitsLoss()
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (real,) in DataLoader(data, 16, sampler=sampler):
        fake = generator(torch.randn(len(real), 4))
        c_optimizer.zero_grad()
        loss(critic(real), torch.ones(len(real), 1)).backward()
        loss(critic(fake.detach()), torch.zeros(len(real), 1)).backward()
        c_optimizer.step()
        g_optimizer.zero_grad()
        loss(critic(fake), torch.ones(len(real), 1)).backward()
        g_optimizer.step()

dist.destroy_process_group()
