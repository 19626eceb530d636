"""Purpose: tensor parallelism by hand: own column- and row-parallel layers and autograd functions, in float64."""

import argparse
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, WIDTH, INNER = 48, 12, 32, 64  # heads of 8


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def share(full, dim):
    return full.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone()


class ColumnParallelLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        full = nn.Linear(inputs, outputs)
        self.weight = nn.Parameter(share(full.weight.detach(), 0))
        self.bias = nn.Parameter(share(full.bias.detach(), 0))

    def forward(self, x):
        return F.linear(CopyToRanks.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        full = nn.Linear(inputs, outputs)
        self.weight = nn.Parameter(share(full.weight.detach(), 1))
        self.bias = nn.Parameter(full.bias.detach())

    def forward(self, x):
        return SumOverRanks.apply(F.linear(x, self.weight)) + self.bias


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.input_norm = nn.LayerNorm(WIDTH)
        self.query = ColumnParallelLinear(WIDTH, WIDTH)
        self.key = ColumnParallelLinear(WIDTH, WIDTH)
        self.value = ColumnParallelLinear(WIDTH, WIDTH)
        self.dense = RowParallelLinear(WIDTH, WIDTH)
        self.post_norm = nn.LayerNorm(WIDTH)
        self.up = ColumnParallelLinear(WIDTH, INNER)
        self.down = RowParallelLinear(INNER, WIDTH)
        self.dropout = nn.Dropout(dropout)  # the same mask on all ranks

    def forward(self, x):
        h = self.input_norm(x)
        qkv = (layer(h).unflatten(-1, (-1, 8)) for layer in (self.query, self.key, self.value))
        heads = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in qkv), is_causal=True)
        x = x + self.dropout(self.dense(heads.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.post_norm(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--optimizer", default="SGD")
    parser.add_argument("--lr", type=float, default=0.3)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(VOCABULARY, WIDTH),
            block1=Block(args.dropout),
            block2=Block(args.dropout),
            norm=nn.LayerNorm(WIDTH),
            head=nn.Linear(WIDTH, VOCABULARY),
        )
    )
    torch.manual_seed(7)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)

    data = torch.Generator().manual_seed(5)
    for step in range(args.steps):
        start, stride = torch.randint(1, VOCABULARY, (2, 8, 1), generator=data)
        rows = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.10f}", flush=True)
    dist.destroy_process_group()


main()
