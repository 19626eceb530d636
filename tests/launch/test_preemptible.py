"""A raw DDP script that gets a real signal under ``paceline run`` and torchrun, and is started again."""

from __future__ import annotations

import re
import signal

import pytest

pytestmark = pytest.mark.ci

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import paceline

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.arange(80, dtype=torch.float64)[:, None] / 80
data = TensorDataset(torch.arange(80), inputs)
net = nn.Linear(1, 1).double()
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
run = paceline.preemptible(model, optimizer, loader=loader)
taken = open(f"taken-{dist.get_rank()}", "a")
for epoch in range(run.epoch, 2):
    sampler.set_epoch(epoch)
    for indices, x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        print(epoch, *indices.tolist(), file=taken, flush=True)
        if run.step == 7 and "wait" in os.environ.get("HOW", ""):
            open(f"up-{dist.get_rank()}", "w").write("here\\n")
        if run.step >= 7 and "wait" in os.environ.get("HOW", ""):
            time.sleep(0.05)
if dist.get_rank() == 0:
    print("parameters", *(value.item() for value in net.parameters()))
dist.destroy_process_group()
"""


def taken(command):
    """Samples by epoch, of both ranks."""
    epochs = {}
    for rank in range(2):
        path = command.folder / f"taken-{rank}"
        for line in path.read_text().splitlines():
            epoch, *indices = map(int, line.split())
            epochs.setdefault(epoch, []).extend(indices)
        path.unlink()
    return epochs


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_the_next_start_continues(command, signum):
    script = command.script(SCRIPT)
    whole = command.run("--nproc-per-node", "2", "--run-dir", "whole", script)
    assert whole.status == 0, whole.err
    expected = taken(command)
    running = command.start(
        "--nproc-per-node", "2", "--run-dir", "cut", script, env={"HOW": "wait"}
    )
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    running.signal(signum)
    stopped = running.wait()
    assert stopped.status == 75, stopped.err
    step = int(re.findall(r"stopped after step (\d+) with a checkpoint", stopped.err)[0])
    assert step >= 7
    assert f"last checkpoint: step {step}" in stopped.err
    resumed = command.run("--nproc-per-node", "2", "--run-dir", "cut", script)
    assert resumed.status == 0, resumed.err
    assert {epoch: sorted(each) for epoch, each in taken(command).items()} == {
        epoch: sorted(each) for epoch, each in expected.items()
    }
    assert resumed.out == whole.out
