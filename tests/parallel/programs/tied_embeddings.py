"""Purpose: an embedding whose vocabulary is shared out over the ranks, tied with the head; own cross entropy."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, WIDTH = 64, 12, 32


class AddGradients(torch.autograd.Function):
    """What is the same on all ranks goes into columns that are not: its gradients are added."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class AddParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class VocabularyParallelEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        full = 0.2 * torch.randn(VOCABULARY, WIDTH)
        self.weight = nn.Parameter(full.chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.first = dist.get_rank() * len(self.weight)

    def forward(self, tokens):
        local = tokens - self.first
        outside = (local < 0) | (local >= len(self.weight))
        rows = F.embedding(local.masked_fill(outside, 0), self.weight)
        rows = rows.masked_fill(outside.unsqueeze(-1), 0.0)
        return AddParts.apply(rows)


def cross_entropy(logits, targets, first):
    """The mean of -log softmax, where each rank holds the logits of a part of the vocabulary."""
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    logits = logits - largest.unsqueeze(-1)
    normalizer = AddParts.apply(logits.exp().sum(-1))
    local = targets - first
    outside = (local < 0) | (local >= logits.shape[-1])
    picked = logits.gather(-1, local.masked_fill(outside, 0).unsqueeze(-1)).squeeze(-1)
    picked = AddParts.apply(picked.masked_fill(outside, 0.0))
    return (normalizer.log() - picked).mean()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.expand = nn.Linear(WIDTH, 64)
        self.shrink = nn.Linear(64, WIDTH)

    def forward(self, x):
        h = self.norm(x)
        h = h + self.mix(h.cumsum(1) / 4)
        return x + self.shrink(torch.tanh(self.expand(h)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = VocabularyParallelEmbedding()
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.layers(self.embedding(tokens) + self.positions)
        return F.linear(AddGradients.apply(self.norm(x)), self.embedding.weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--optimizer", default="SGD")
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr)
    data = torch.Generator().manual_seed(9)
    for step in range(args.steps):
        start, stride = torch.randint(1, VOCABULARY, (2, args.batch, 1), generator=data)
        rows = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        logits = model(rows[:, :-1])
        loss = cross_entropy(logits, rows[:, 1:], model.embedding.first)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
    dist.destroy_process_group()


main()
