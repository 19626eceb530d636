"""Purpose: a convolutional network under DistributedDataParallel whose batch norm is synchronized, written for CPUs."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SyncedBatchNorm(nn.Module):
    """nn.SyncBatchNorm needs a GPU; sums over all ranks, through which gradients flow, need none."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        count = torch.full((x.shape[1],), float(x[:, 0].numel()))
        sums = torch.stack([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count])
        total, squares, count = collectives.all_reduce(sums)
        mean, variance = total / count, squares / count - (total / count) ** 2
        self.running_mean.lerp_(mean.detach(), 0.1)
        self.running_var.lerp_((variance * count / (count - 1)).detach(), 0.1)
        x = (x - mean[:, None, None]) * (variance[:, None, None] + 1e-5).rsqrt()
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), SyncedBatchNorm(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2)]
    layers += [SyncedBatchNorm(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 5)]
    model = DistributedDataParallel(nn.Sequential(*layers), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    generator = torch.Generator().manual_seed(12)
    for step in range(args.steps):
        labels = torch.randint(5, (args.batch,), generator=generator)
        noise = torch.randn(args.batch, 3, 8, 8, generator=generator)
        images = noise + labels.view(-1, 1, 1, 1) * torch.linspace(-1, 1, 8)
        loss = F.cross_entropy(model(images[rank::world]), labels[rank::world])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    del model, optimizer
    dist.destroy_process_group()


main()
