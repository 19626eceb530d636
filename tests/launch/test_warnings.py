"""Warnings in real runs: right programs that were once accused, and what nobody notices without a word."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

pytestmark = pytest.mark.slow

START = """
import os, sys, warnings
import torch, torch.distributed as dist
from torch import nn
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import *

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(320, 8), torch.randn(320, 1))
held_out = TensorDataset(torch.randn(101, 8), torch.randn(101, 1))
net = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step(x, y, model=model, optimizer=optimizer):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def evaluate(shuffle=False, **options):
    sums, scores = torch.zeros(2), []
    with torch.no_grad():
        sampler = DistributedSampler(held_out, shuffle=shuffle, **options)
        for x, y in DataLoader(held_out, batch_size=10, sampler=sampler):
            scores.append((net(x) - y).square())
            sums += torch.stack([scores[-1].sum(), torch.tensor(float(len(x)))])
    return sums, torch.cat(scores)
"""
END = "\ndist.destroy_process_group()\n"


HEALTHY = {
    "the textbook script": """
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=64, sampler=sampler)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in loader:
                step(x, y)
        """,
    "three models on one deliberate order": """
        sampler = DistributedSampler(data, seed=7)
        for rate in (0.1, 0.01, 0.001):
            model = DistributedDataParallel(nn.Linear(8, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for x, y in DataLoader(data, batch_size=16, sampler=sampler):
                step(x, y, model, optimizer)
        """,
    "slices of a global batch": """
        generator = torch.Generator().manual_seed(1)
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=32, shuffle=True, generator=generator):
                step(x[rank::world], y[rank::world])
        """,
    "slices of a global batch, gradients averaged by hooks": """
        net = nn.Linear(8, 1)
        for parameter in net.parameters():
            def average(gradient):
                gradient = gradient.clone()
                dist.all_reduce(gradient)
                return gradient / world
            parameter.register_hook(average)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for x, y in DataLoader(data, batch_size=32, shuffle=True):
            step(x[rank::world], y[rank::world], net, optimizer)
        """,
    "tensor parallelism by hand": """
        class Summed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                x = x.clone()
                dist.all_reduce(x)
                return x
            @staticmethod
            def backward(ctx, gradient):
                return gradient

        class Split(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(8)
                up, down = torch.randn(16, 8) / 4, torch.randn(1, 16) / 4
                self.up = nn.Parameter(up.chunk(world)[rank].clone())
                self.down = nn.Parameter(down.chunk(world, dim=1)[rank].clone())
            def forward(self, x):
                return Summed.apply(linear(linear(self.norm(x), self.up).relu(), self.down))

        model = Split()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            step(x, y, model, optimizer)
        """,
    "sequence parallelism with a sampler of its own": """
        tokens = torch.randn(64, 12, 8)
        sampler = DistributedSampler(tokens, num_replicas=1, rank=0, shuffle=True)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x in DataLoader(tokens, batch_size=8, sampler=sampler):
                part = x.chunk(world, dim=1)[rank]
                step(part, part.mean(dim=2, keepdim=True))
        """,
    "augmentation per rank after the loader": """
        noise = torch.Generator().manual_seed(rank)
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=16):
                step(x + 0.1 * torch.randn(x.shape, generator=noise), y)
        """,
    "predictions gathered, and what was repeated cut off": """
        for epoch in range(2):
            scores = evaluate()[1]
            gathered = [torch.empty_like(scores) for _ in range(world)]
            dist.all_gather(gathered, scores)
            total = torch.stack(gathered, 1).flatten()[:len(held_out)].mean()
            dist.all_reduce(total)
        """,
    "an evaluation that drops the last": """
        sums = evaluate(drop_last=True)[0]
        dist.all_reduce(sums)
        """,
    "an evaluation of each rank on its own": "print(evaluate()[0])",
    "statistics over the training data": """
        data = TensorDataset(torch.randn(101, 8), torch.randn(101, 1))
        loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data))
        for x, y in loader:
            step(x, y)
        with torch.no_grad():
            mean = sum(x.sum(0) for x, _ in loader)
        dist.all_reduce(mean)
        """,
    "a trial that ends in NaN, and one that does not": """
        for rate in (1e30, 0.01):
            trial = nn.Linear(8, 1)
            optimizer = torch.optim.SGD(trial.parameters(), lr=rate)
            for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
                step(x, y, trial, optimizer)
        """,
    "a compiled step of an optimizer": """
        warnings.filterwarnings("error", message="(?s).*(monotonic|paceline)")
        @torch.compile(backend="eager")
        def update():
            optimizer.step()
        for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            update()
        from torch._dynamo.utils import counters
        breaks = [reason for reason in counters["graph_break"] if "User-inserted graph break" not in reason]
        assert not breaks, breaks  # one is in every step of torch's own optimizers
        """,
    "a whole step compiled, data that all read": """
        warnings.filterwarnings("error", message="(?s).*(monotonic|paceline)")
        @torch.compile(backend="eager")
        def train(x, y):
            step(x, y)
        for x, y in DataLoader(data, batch_size=16):
            train(x[rank::world], y[rank::world])
        from torch._dynamo.utils import counters
        assert not any("monotonic" in reason for reason in counters["graph_break"]), counters["graph_break"]
        """,
    "an optimizer of one's own in one graph": """
        class Plain(torch.optim.Optimizer):
            def step(self):
                with torch.no_grad():
                    for group in self.param_groups:
                        for parameter in group["params"]:
                            parameter.sub_(parameter.grad, alpha=0.01)
        optimizer = Plain(model.parameters(), {})
        @torch.compile(backend="eager", fullgraph=True)
        def update():
            optimizer.step()
        for number, (x, y) in enumerate(DataLoader(data, batch_size=16, sampler=DistributedSampler(data))):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            update()
        """,
    "a compiled model in one graph, data that all read": """
        torch.compiler.set_stance("default")
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        for x, y in DataLoader(data, batch_size=16):
            step(x[rank::world], y[rank::world], compiled)
            for parameter in net.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world
        """,
}

FAULTY = {
    "a padded evaluation": ("evaluation-padded", "dist.all_reduce(evaluate()[0])"),
    "a padded evaluation in each epoch": (
        "evaluation-padded",
        """
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data, seed=epoch)):
                step(x, y)
            sums = evaluate()[0]
            dist.all_reduce(sums)
        """,
    ),
    "gradients switched off for each batch": (
        "evaluation-padded",
        """
        for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
            step(x, y)
        total = torch.zeros(1)
        for x, y in DataLoader(held_out, batch_size=10, sampler=DistributedSampler(held_out, shuffle=False)):
            with torch.no_grad():
                total += (net(x) - y).square().sum()
        dist.all_reduce(total)
        """,
    ),
    "a NaN at the end": (
        "parameters-not-finite",
        """
        for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
            step(x, y * float("nan"))
        """,
    ),
    "a NaN at the end of a function": (
        "parameters-not-finite",
        """
        def main():
            model = nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
                step(x, y * float("nan"), model, optimizer)
        main()
        """,
    ),
    "gradients averaged by hand": (
        "same-data-on-all-ranks",
        """
        for x, y in DataLoader(data, batch_size=16):
            (net(x) - y).square().mean().backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "a model compiled with DDP": (
        "same-data-on-all-ranks",
        """
        model = torch.compile(model, backend="aot_eager")
        for x, y in DataLoader(data, batch_size=16):
            step(x, y, model)
        """,
    ),
    "a static graph and buckets as gradients": (
        "same-data-on-all-ranks",
        """
        model = DistributedDataParallel(net, static_graph=True, gradient_as_bucket_view=True)
        for x, y in DataLoader(data, batch_size=16):
            step(x, y, model)
        """,
    ),
}


def run(command, text, *options):
    script = command.script(START + dedent(text) + END)
    ended = command.run(
        "--nproc-per-node", 2, "--run-dir", "run", *options, script, env={"OMP_NUM_THREADS": "1"}
    )
    lines = (command.folder / "run" / "events.jsonl").read_text().splitlines()
    return ended, [found["name"] for found in json.loads(lines[-1])["findings"]], lines


@pytest.mark.parametrize("name", HEALTHY)
def test_a_right_program_is_not_accused(command, name):
    ended, names, _ = run(command, HEALTHY[name])
    assert (ended.status, names) == (0, []), ended.err


@pytest.mark.parametrize("name", FAULTY)
def test_what_nobody_notices_is_said(command, name):
    finding, text = FAULTY[name]
    ended, names, _ = run(command, text)
    assert (ended.status, names) == (0, [finding]), ended.err


def test_compiled_steps_are_counted(command):
    ended, *_ = run(command, HEALTHY["an optimizer of one's own in one graph"])
    assert "done: 2 ranks, 10 steps" in ended.err


def test_checks_leave_compiled_steps_alone(command):
    text = HEALTHY["a compiled step of an optimizer"]
    ended, names, _ = run(command, text, "--check-finite", "--check-replicas", "2")
    assert (ended.status, names) == (0, []), ended.err
