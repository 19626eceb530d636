"""Purpose: a mixture of experts, which are shared out over the ranks; data-parallel in what is not an expert."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
import torch.nn.functional as F
from torch import nn

INPUTS, WIDTH, EXPERTS, CLASSES = 16, 32, 4, 6


def expert():
    return nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))


class Mixture(nn.Module):
    """Each rank applies its experts to the rows of all ranks, weighted by the router."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        every = [expert() for _ in range(EXPERTS)]
        share = EXPERTS // dist.get_world_size()
        self.first = dist.get_rank() * share
        self.experts = nn.ModuleList(every[self.first : self.first + share])

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        everyone = torch.cat(collectives.all_gather(x))
        all_weights = torch.cat(collectives.all_gather(weights))
        mixed = sum(
            all_weights[:, self.first + i, None] * one(everyone)
            for i, one in enumerate(self.experts)
        )
        whole = collectives.all_reduce(mixed)
        return x + whole[dist.get_rank() * len(x) :][: len(x)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(INPUTS, WIDTH), Mixture(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
    )
    shared = [p for name, p in model.named_parameters() if "experts" not in name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(13)
    centers = torch.randn(CLASSES, INPUTS, generator=generator)
    for step in range(args.steps):
        labels = torch.randint(CLASSES, (args.batch,), generator=generator)
        inputs = centers[labels] + torch.randn(args.batch, INPUTS, generator=generator)
        mine = slice(rank * args.batch // world, (rank + 1) * args.batch // world)
        loss = F.cross_entropy(model(inputs[mine]), labels[mine]) / world
        optimizer.zero_grad()
        loss.backward()  # the gradient of a gather or sum is the sum of the gradients of all ranks
        for p in shared:
            dist.all_reduce(p.grad)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item():.7f}", flush=True)
    dist.destroy_process_group()


main()
