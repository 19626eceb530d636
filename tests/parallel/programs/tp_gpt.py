"""Purpose: a small GPT in torch's tensor parallelism (parallelize_module), with parameters that are no DTensors beside."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCABULARY, LENGTH, WIDTH, HEADS = 64, 16, 32, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wv = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        size = WIDTH // HEADS  # heads of this rank: as many as its columns hold
        q, k, v = (
            w(x).unflatten(-1, (-1, size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(heads.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.w1 = nn.Linear(WIDTH, 64)
        self.w2 = nn.Linear(64, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.w2(F.gelu(self.w1(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


PLAN = {
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.wo": RowwiseParallel(),
    "w1": ColwiseParallel(),
    "w2": RowwiseParallel(),
}


def clip_gradients(parameters, limit):
    total = torch.zeros((), dtype=parameters[0].dtype)
    for p in parameters:
        norm = p.grad.norm()
        total += (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
    factor = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in parameters:
        p.grad.mul_(factor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--float64", action="store_true")
    args = parser.parse_args()
    if args.float64:
        torch.set_default_dtype(torch.float64)

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = GPT()
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    parallelize_module(model.head, mesh, ColwiseParallel(output_layouts=Replicate()))
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr, foreach=False)

    generator = torch.Generator().manual_seed(4)  # all ranks see the same rows
    for step in range(args.steps):
        start, stride = torch.randint(1, VOCABULARY, (2, args.batch, 1), generator=generator)
        rows = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(list(model.parameters()), args.clip)
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
    dist.destroy_process_group()


main()
