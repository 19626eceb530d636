"""Fabric: a GAN with two models and two optimizers (lightning/examples: fabric DCGAN)."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
generator, g_optimizer = fabric.setup(generator, torch.optim.Adam(generator.parameters()))
critic, c_optimizer = fabric.setup(critic, torch.optim.Adam(critic.parameters()))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(128, 8)), 16, shuffle=True))
for _ in range(2):
    for (real,) in loader:
        fake = generator(torch.randn(len(real), 4))
        c_optimizer.zero_grad()
        fabric.backward(critic(fake.detach()).mean() - critic(real).mean())
        c_optimizer.step()
        g_optimizer.zero_grad()
        fabric.backward(-critic(fake).mean())
        g_optimizer.step()
