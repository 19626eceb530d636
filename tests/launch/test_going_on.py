"""The example: killed in the middle and started again on another number of ranks, it ends as if nothing had been."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from starting import free_port

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


def accuracies(ended):
    return dict(re.findall(r"epoch (\d+): 360 samples, accuracy (\S+) %", ended.out))


def committed(folder):
    return sorted(path.name for path in folder.glob("checkpoints/[0-9]*"))


@pytest.mark.slow
@pytest.mark.timeout(120)  # three starts
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_example_survives(command, how):
    uninterrupted = command.run("--nproc-per-node", 2, DIGITS, "--epochs", 4)
    assert uninterrupted.status == 0, uninterrupted.err
    folder = command.folder / "mine"
    running = command.start("--nproc-per-node", 2, "--run-dir", folder, DIGITS, "--epochs", 4)
    deadline = time.monotonic() + 40
    while len(committed(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    running.signal(how)
    stopped = running.wait()
    assert stopped.status == (75 if how == signal.SIGTERM else -how)
    assert command.survivors(within_s=5) == []
    assert 0 < len(accuracies(stopped)) < 4, "it was in the middle"
    resumed = command.run("--nproc-per-node", 3, "--run-dir", folder, DIGITS, "--epochs", 4)
    assert resumed.status == 0, resumed.err
    assert "resuming from" in resumed.err
    assert {**accuracies(stopped), **accuracies(resumed)} == accuracies(uninterrupted)
    assert len(accuracies(resumed)) < 4, "it did not begin anew"


TRAIN = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
import paceline

fails_at = int(sys.argv[1])
session = paceline.Session(precision="64-true", seed=1, accumulate=2)
x = torch.randn(61, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
model, optimizer = session.setup(*(lambda m: (m, torch.optim.Adam(m.parameters(), lr=0.05)))(nn.Linear(3, 1)))
loader = session.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=6, shuffle=True)
session.restore()
first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
for epoch in session.epochs(3):
    for rows, target in loader:
        loss = (model(rows) - target).square().mean()
        if session.backward(loss):
            optimizer.step()
            optimizer.zero_grad()
            session.save(wait=True)
            weight = session.unwrap(model).weight.flatten().tolist()
            session.print(session.step, *(f"{each:.11f}" for each in weight))
            if first and session.step == fails_at:
                if session.rank == session.world_size - 1:
                    if len(sys.argv) > 2:
                        open("at-step", "w").write("here\\n")
                        time.sleep(120)
                    raise OSError("a bad day")
                session.barrier()
"""


def curve(ended):
    return dict(re.findall(r"^(\d+) (.+)$", ended.out, re.M))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_restart_goes_on_from_the_last_checkpoint(command):
    command.script(TRAIN)
    whole = command.run("train.py", -1)
    assert whole.status == 0, whole.err
    assert len(curve(whole)) == 3 * 6
    ended = command.run("--nproc-per-node", 2, "--max-restarts", 1, "train.py", 8)
    assert ended.status == 0, ended.err
    assert "step 8, saved by 2 ranks" in ended.err
    assert curve(ended) == curve(whole)
    assert len(ended.out.splitlines()) == len(curve(whole)), "no step was made twice"


@pytest.mark.slow
def test_fewer_nodes_go_on_with_the_same_global_batch(command):
    command.script(TRAIN)
    whole = command.run("train.py", -1)
    options = [
        "--nnodes",
        "1:2",
        "--max-restarts",
        2,
        "--rdzv-backend",
        "c10d",
        "--run-dir",
        command.folder / "mine",
    ]
    options += ["--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-conf", "last_call_timeout=4"]
    head = command.start(*options, "--nproc-per-node", 1, "train.py", 5, "hang")
    time.sleep(2)
    other = command.start(*options, "--nproc-per-node", 1, "train.py", 5, "hang")
    command.wait_for(command.folder / "at-step")
    other.signal(signal.SIGKILL)
    other.process.wait()
    ended = head.wait()
    assert ended.status == 0, ended.err
    assert "saved by 2 ranks" in ended.err
    found = curve(ended)
    assert found == {step: values for step, values in curve(whole).items() if step in found}
    assert {"5", "6", "18"} <= set(found)
