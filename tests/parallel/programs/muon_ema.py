"""Purpose: Muon for matrices and AdamW for the rest on a model under fully_shard; averaged weights are evaluated."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

INPUTS, WIDTH, CLASSES = 24, 48, 6


def orthogonalize(matrix, rounds=5):
    """Newton-Schulz iterations in float32: the nearest matrix whose singular values are near 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.9, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("momentum", torch.zeros_like(p.grad))
                average.mul_(group["momentum"]).add_(p.grad)
                whole = average.full_tensor()  # orthogonal as a whole, not piece by piece
                update = distribute_tensor(orthogonalize(whole), p.device_mesh, p.placements)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"])


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(INPUTS, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH)
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def shard(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@torch.no_grad()
def update_average(average, model, decay):
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        old.lerp_(new, 1 - decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="of all ranks together")
    parser.add_argument("--decay", type=float, default=0.8)
    parser.add_argument("--muon", choices=["own", "torch"], default="own")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Network()
    average = shard(copy.deepcopy(model), mesh).requires_grad_(False)
    shard(model, mesh)
    matrices = [p for name, p in model.named_parameters() if "layers" in name and p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    kind = {"own": Muon, "torch": torch.optim.Muon}[args.muon]
    muon = kind(matrices, lr=0.02, momentum=0.9, weight_decay=0.01)
    adam = torch.optim.AdamW(others, lr=3e-3)

    generator = torch.Generator().manual_seed(10)
    labels = torch.randint(CLASSES, (160,), generator=generator)
    centers = torch.randn(CLASSES, INPUTS, generator=generator)
    inputs = centers[labels] + 2 * torch.randn(160, INPUTS, generator=generator)
    for step in range(args.steps):
        first = step * args.batch % 128
        mine = slice(first + rank, first + args.batch, world)
        loss = F.cross_entropy(model(inputs[mine]), labels[mine])
        loss.backward()
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad()
        update_average(average, model, args.decay)
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    with torch.no_grad():
        test = F.cross_entropy(average(inputs[128:]), labels[128:])
    if rank == 0:
        print(f"averaged weights: test loss {test.item():.7f}", flush=True)
    dist.destroy_process_group()


main()
