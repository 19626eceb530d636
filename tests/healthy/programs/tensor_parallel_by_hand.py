"""Tensor parallelism by hand: split linear layers, a norm that all ranks have (after Megatron-LM)."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
norm = nn.LayerNorm(8)
up = nn.Parameter((torch.randn(32, 8) / 4).chunk(world)[rank].clone())
down = nn.Parameter((torch.randn(1, 32) / 4).chunk(world, dim=1)[rank].clone())
optimizer = torch.optim.AdamW([*norm.parameters(), up, down], lr=0.01)
for _ in range(2):
    for x, y in DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        hidden = nn.functional.linear(norm(x), up).relu()
        (Reduced.apply(nn.functional.linear(hidden, down)) - y).square().mean().backward()
        for parameter in norm.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()

dist.destroy_process_group()
