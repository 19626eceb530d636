"""Purpose: a small vision transformer in hybrid sharding: a mesh of replicas and shards, its own gradient clipping."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

PATCH, SIDE, WIDTH, CLASSES = 4, 16, 32, 10


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 64)
        self.fc2 = nn.Linear(64, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.dropout(self.attention(h, h, h, need_weights=False)[0])
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class VisionTransformer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2 + 1, WIDTH))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def clip_gradients(model, limit, mesh):
    """Each gradient is a shard: squares are summed over the ranks that hold the shards of one replica."""
    total = torch.zeros(())
    for p in model.parameters():
        total += p.grad.to_local().square().sum()
    dist.all_reduce(total, group=mesh["shard"].get_group())
    factor = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(factor)


def pictures(rows, augment):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    means = torch.randn(CLASSES, 3, SIDE, SIDE, generator=generator)
    images = means[labels] + torch.randn(rows, 3, SIDE, SIDE, generator=generator)
    if augment:  # each picture has random numbers of its own
        for index in range(rows):
            if torch.rand((), generator=torch.Generator().manual_seed(1000 + index)) < 0.5:
                images[index] = images[index].flip(-1)
    return images, labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--augment", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    world = int(os.environ["WORLD_SIZE"])
    shard = min(2, world)
    mesh = init_device_mesh("cpu", (world // shard, shard), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = VisionTransformer(args.dropout)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(100 + dist.get_rank())
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    images, labels = pictures(64, args.augment)
    share = args.batch // world
    data_rank = mesh["replicate"].get_local_rank() * shard + mesh["shard"].get_local_rank()
    for step in range(args.steps):
        first = step * args.batch % len(images) + data_rank * share
        x, y = images[first : first + share], labels[first : first + share]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        clip_gradients(model, args.clip, mesh)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / world:.7f}", flush=True)
    dist.destroy_process_group()


main()
