"""Purpose: a small GPT under DistributedDataParallel, with accumulation, clipping and texts of uneven length."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, LENGTH, WIDTH, HEADS = 64, 16, 32, 4


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(heads.transpose(1, 2).reshape(rows, length, WIDTH)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_data(rows):
    """Texts with a pattern; what is behind the end of a text is not learnt (-100)."""
    generator = torch.Generator().manual_seed(1)
    start = torch.randint(VOCABULARY, (rows, 1), generator=generator)
    stride = torch.randint(1, 5, (rows, 1), generator=generator)
    texts = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
    lengths = torch.randint(3, LENGTH + 1, (rows, 1), generator=generator)
    targets = texts[:, 1:].masked_fill(torch.arange(LENGTH) >= lengths, -100)
    return texts[:, :-1], targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="of all ranks together")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="adamw")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(args.dropout))
    torch.manual_seed(100 + rank)  # other dropout masks on each rank
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    inputs, targets = make_data(args.rows)

    for step in range(args.steps):
        first = step * args.batch % args.rows
        x = inputs[first : first + args.batch][rank::world]
        y = targets[first : first + args.batch][rank::world]
        count = (y != -100).sum()
        dist.all_reduce(count)
        total = torch.zeros(())
        parts = list(zip(x.chunk(args.accumulate), y.chunk(args.accumulate), strict=True))
        for number, (part_x, part_y) in enumerate(parts):
            last = number == len(parts) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                    logits = model(part_x)
                loss = F.cross_entropy(
                    logits.flatten(0, 1).float(), part_y.flatten(), reduction="sum"
                )
                loss = loss / count
                (loss * world).backward()  # DDP averages over ranks
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.7f}", flush=True)
    del model, optimizer
    dist.destroy_process_group()


main()
