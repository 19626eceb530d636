"""Purpose: sequence parallelism by hand: norms work on a part of the positions, layers on a part of the columns."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, WIDTH, INNER = 48, 16, 32, 64  # heads of 8


def gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


def scatter_sum(x):
    x = x.clone()
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()


class GatherPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gather(x)

    @staticmethod
    def backward(ctx, gradient):
        return scatter_sum(gradient)


class ScatterPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scatter_sum(x)

    @staticmethod
    def backward(ctx, gradient):
        return gather(gradient)


class Linear(nn.Module):
    """A part of the columns or rows of a linear layer; the bias of rows is whole."""

    def __init__(self, inputs, outputs, dim):
        super().__init__()
        full, ranks, rank = nn.Linear(inputs, outputs), dist.get_world_size(), dist.get_rank()
        self.weight = nn.Parameter(full.weight.detach().chunk(ranks, dim)[rank].clone())
        bias = full.bias.detach()
        self.bias = nn.Parameter(bias.chunk(ranks)[rank].clone() if dim == 0 else bias)
        self.rows = dim == 1

    def forward(self, x):
        y = F.linear(x, self.weight)
        return (ScatterPositions.apply(y) if self.rows else y) + self.bias


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.ModuleList(Linear(WIDTH, WIDTH, 0) for _ in range(3))
        self.proj = Linear(WIDTH, WIDTH, 1)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = Linear(WIDTH, INNER, 0)
        self.fc2 = Linear(INNER, WIDTH, 1)

    def forward(self, x):
        h = GatherPositions.apply(self.norm1(x))
        qkv = [layer(h).unflatten(-1, (-1, 8)).transpose(1, 2) for layer in self.qkv]
        heads = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(GatherPositions.apply(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.final_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, first):
        x = self.embedding(tokens) + self.position[first : first + tokens.shape[1]]
        return self.head(self.final_norm(self.blocks(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT()
    whole = ("norm", "proj.bias", "fc2.bias", "embedding", "position", "head")
    replicated = [p for name, p in model.named_parameters() if any(word in name for word in whole)]
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)

    data = torch.Generator().manual_seed(6)
    for step in range(args.steps):
        start, stride = torch.randint(1, VOCABULARY, (2, 8, 1), generator=data)
        rows = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        x, y = rows[:, :-1].chunk(ranks, 1)[rank], rows[:, 1:].chunk(ranks, 1)[rank]
        loss = F.cross_entropy(model(x, rank * x.shape[1]).flatten(0, 1), y.flatten()) / ranks
        loss.backward()
        for p in replicated:  # whole on each rank, and each gradient is that of its positions
            dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item():.7f}", flush=True)
    dist.destroy_process_group()


main()
