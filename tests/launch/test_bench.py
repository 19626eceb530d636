"""``paceline bench`` on a real script: brakes that were put into it are named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from paceline.measure import bench_file
from paceline.rundir.files import RunDir
from starting import inherited

TRAINING = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

brake, batch = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
dist.init_process_group("gloo")


class Samples(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        time.sleep(0.005 if brake == "data" else 0)
        return torch.ones(64)


class Work(torch.autograd.Function):
    # Sleeps for the computing: two ranks may share a CPU that others use too.
    @staticmethod
    def forward(ctx, x):
        slow = brake == "slow" and dist.get_rank() == 1
        time.sleep(0.0 if brake == "tiny" else 0.04 if slow else 0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


model = DistributedDataParallel(nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples = Samples()
for x in DataLoader(samples, batch, sampler=DistributedSampler(samples)):
    optimizer.zero_grad()
    Work.apply(model(x)).sum().backward()
    optimizer.step()
"""


def bench(folder, brake, *options):
    """The status and the JSON of a bench of one round, whose script has a brake."""
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "paceline", "bench", "--world", "1,2", "--oversubscribe"]
    command += ["--steps", "24", "--rounds", "1", "--json", *options, "train.py", brake]
    ended = subprocess.run(
        command, cwd=folder, env=inherited(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("brake", "name", "words"),
    [
        ("data", "data", "wait for data"),
        ("slow", "slow-rank", "waiting for rank 1"),
        ("tiny", "small-batch", "too little work in a step"),
    ],
)
def test_a_brake_is_named(tmp_path, brake, name, words):
    result = bench(tmp_path, brake)
    assert result["brake"]["name"] == name, result
    assert words in result["brake"]["sentence"]
    content = bench_file.read(RunDir(tmp_path / result["run_dir"]))
    assert sorted(content.worlds) == [1, 2]
    assert content.worlds[2].samples_per_step == 8
    assert content.gradient_bytes == 65 * 4
    assert min(content.worlds[1].rounds[0]) >= content.warmup_steps >= 2


def test_strong_scaling_keeps_the_batch_of_all_ranks(tmp_path):
    result = bench(tmp_path, "none", "--scaling", "strong", "--batch-option", "{per_rank}")
    assert result["scaling"] == "strong"
    assert [row["samples_per_step"] for row in result["figures"]] == [4, 4]
