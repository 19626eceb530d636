"""Purpose: tensor parallelism by hand: own column- and row-parallel layers and autograd functions, in float64."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, WIDTH, HEADS, INNER = 48, 12, 32, 4, 64


class CopyToRanks(torch.autograd.Function):
    """The input as it is; the gradients of all ranks are added."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    """The sum over all ranks; the gradient as it is."""

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
        q, k, v = (f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.query, self.key, self.value))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.dense(heads.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.post_norm(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    embedding = nn.Embedding(VOCABULARY, WIDTH)
    blocks = nn.Sequential(Block(args.dropout), Block(args.dropout))
    head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY))
    model = nn.ModuleDict({"embedding": embedding, "blocks": blocks, "head": head})
    torch.manual_seed(7)
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    data = torch.Generator().manual_seed(5)
    for step in range(args.steps):
        start = torch.randint(VOCABULARY, (args.batch, 1), generator=data)
        stride = torch.randint(1, 5, (args.batch, 1), generator=data)
        rows = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        logits = model["head"](model["blocks"](model["embedding"](rows[:, :-1])))
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.10f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
