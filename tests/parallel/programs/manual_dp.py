"""Purpose: data parallelism by hand: gradients reduced in buckets, a loss scale, an input average as buffer, dropout."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

SIDE, CLASSES = 8, 5


class Network(nn.Module):
    """Convolutions on pictures from which their running average is subtracted."""

    def __init__(self, dropout):
        super().__init__()
        self.register_buffer("average", torch.zeros(3, SIDE, SIDE))
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 16)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(16 * SIDE * SIDE // 4, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        if self.training:
            sums = torch.stack([x.sum(0), torch.full_like(x[0], len(x))])
            dist.all_reduce(sums)
            self.average.lerp_(sums[0] / sums[1], 0.1)
        x = F.relu(self.norm1(self.conv1(x - self.average)))
        x = F.relu(self.norm2(self.conv2(x))).flatten(1)
        return self.head(self.dropout(F.relu(self.hidden(x))))


def reduce_bucket(bucket):
    flat = _flatten_dense_tensors(bucket)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, reduced in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
        gradient.copy_(reduced)


def reduce_gradients(model, bucket_size):
    bucket, size = [], 0
    for p in reversed(list(model.parameters())):
        bucket.append(p.grad)
        size += p.numel()
        if size >= bucket_size:
            reduce_bucket(bucket)
            bucket, size = [], 0
    if bucket:
        reduce_bucket(bucket)


def make_data(rows):
    generator = torch.Generator().manual_seed(11)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    centers = torch.randn(CLASSES, 3, SIDE, SIDE, generator=generator)
    return centers[labels] + torch.randn(rows, 3, SIDE, SIDE, generator=generator), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--scale", type=float, default=1024.0)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--bucket", type=int, default=4096)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # start values come from rank 0, dropout masks differ
    model = Network(args.dropout)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    images, labels = make_data(args.rows)
    for step in range(args.steps):
        first = step * args.batch % args.rows
        x, y = images[first : first + args.batch], labels[first : first + args.batch]
        rows = len(y)  # the last batch may be smaller
        x, y = x.tensor_split(world)[rank], y.tensor_split(world)[rank]
        loss = F.cross_entropy(model(x), y, reduction="sum") * world / rows
        (loss * args.scale).backward()
        reduce_gradients(model, args.bucket)
        for p in model.parameters():
            p.grad /= args.scale
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item() / world:.7f}", flush=True)
    dist.destroy_process_group()


main()
