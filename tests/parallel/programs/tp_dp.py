"""Purpose: four ranks, two for tensor parallelism and two for data: parallelize_module, then fully_shard."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, LENGTH, WIDTH = 64, 16, 32


class Mixer(nn.Module):  # positions look back by an average of those before them
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        counts = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        return self.out(self.value(x).cumsum(1) / counts)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer_norm = nn.RMSNorm(WIDTH)
        self.mixer = Mixer()
        self.feed_norm = nn.RMSNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH))

    def forward(self, x):
        x = x + self.mixer(self.mixer_norm(x))
        return x + self.feed(self.feed_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


ROW = RowwiseParallel(output_layouts=Shard(1))
WHOLE = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
LAYER = {
    "mixer_norm": SequenceParallel(),
    "mixer": WHOLE,
    "mixer.value": ColwiseParallel(),
    "mixer.out": ROW,
    "feed_norm": SequenceParallel(),
    "feed": WHOLE,
    "feed.0": ColwiseParallel(),
    "feed.2": ROW,
}
OUTSIDE = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh["dp"], mesh["tp"]
    torch.manual_seed(0)
    model = Model()
    parallelize_module(model, tp, OUTSIDE)
    for layer in model.layers:
        parallelize_module(layer, tp, LAYER)
        fully_shard(layer, mesh=dp)
    fully_shard(model, mesh=dp)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.lr, foreach=False)

    generator = torch.Generator().manual_seed(8)
    start, stride = torch.randint(1, VOCABULARY, (2, 128, 1), generator=generator)
    dataset = TensorDataset((start + stride * torch.arange(LENGTH + 1)) % VOCABULARY)
    sampler = DistributedSampler(dataset, dp.size(), dp.get_local_rank(), shuffle=False)
    loader = DataLoader(dataset, 16 // dp.size(), sampler=sampler)
    for step, (rows,) in zip(range(args.steps), loader, strict=False):
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        norms = [p.grad.norm().full_tensor() for p in model.parameters()]
        factor = (0.2 / (torch.stack(norms).norm() + 1e-6)).clamp(max=1.0)
        for p in model.parameters():
            p.grad.mul_(factor)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, group=dp.get_group())
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item() / dp.size():.7f}", flush=True)
    dist.destroy_process_group()


main()
