"""Edits that remove a finding: on a copy, which is looked at again and, if it is Python, run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from paceline.diagnose import lint
from paceline.diagnose.edits.apply import edits

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dataset = TensorDataset(torch.arange(8.0)[:, None])
sampler = DistributedSampler(dataset{sampler})
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
model = DDP(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
for epoch in range(2):{epoch}
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
{after}
dist.destroy_process_group()
"""


def script(*, sampler="", epoch="\n    sampler.set_epoch(epoch)", before="", after=""):
    return SCRIPT.format(sampler=sampler, epoch=epoch, before=before, after=after)


SAVED = """if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "m.pt")
"""
LOADED = 'if os.path.exists("m.pt"):\n    model.module.load_state_dict(torch.load("m.pt"))\n'
PYTHON = [
    ("set-epoch-missing", script(epoch=""), script()),
    (
        "map-location-missing",
        script(before=LOADED, after=SAVED),
        script(before=LOADED.replace('"m.pt"))', '"m.pt", map_location="cpu"))'), after=SAVED),
    ),
    (
        "folder-race",
        script(before='os.makedirs(\n    "out",\n)\n'),
        script(before='os.makedirs(\n    "out", exist_ok=True)\n'),
    ),
    ("folder-race", script(before='os.makedirs("äöü")'), script(before='os.makedirs("äöü", exist_ok=True)')),
]  # fmt: skip
JOB = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=1:00:00
{cpus}{line}
srun paceline run train.py
"""


def job(line="export OMP_NUM_THREADS=4", cpus="#SBATCH --cpus-per-task=32\n"):
    return JOB.format(line=line, cpus=cpus)


JOBS = [
    ("cpus-per-task-missing", job(cpus=""), job()),
    ("unset-variable", job("OMP_NUM_THREADS=4"), job()),
    ("unset-variable", job("  NCCL_DEBUG=INFO"), job("  export NCCL_DEBUG=INFO")),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(file):
    return [finding.name for finding in lint.lint([file]).findings]


@pytest.mark.parametrize(("name", "before", "after"), PYTHON)
def test_python_is_fixed_and_runs(folder, name, before, after):
    (folder / "train.py").write_text(before)
    assert name in names("train.py")
    (edited,) = edits(["train.py"])
    assert edited.after == after and name in [finding.name for finding in edited.removed]
    edited.write()
    assert name not in names("train.py")
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "train.py"], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(("name", "before", "after"), JOBS)
def test_a_job_script_is_fixed(folder, name, before, after):
    (folder / "job.sbatch").write_text(before)
    assert name in names("job.sbatch")
    (edited,) = edits(["job.sbatch"])
    assert edited.after == after
    assert name not in [finding.name for finding in lint.check_text("job.sbatch", after).findings]


UNCERTAIN = {
    "two loops": script(epoch="") + "for epoch in range(2):\n    pass\n",
    "another function": "from torch.utils.data import DataLoader, DistributedSampler\n"
    "def make(data):\n    sampler = DistributedSampler(data)\n    return DataLoader(data, sampler=sampler)\n"
    "def main(data):\n    loader = make(data)\n    for epoch in range(3):\n        for x in loader:\n            model(x).backward()\n",
    "of the job": job(cpus="#SBATCH --cpus-per-task=8\n#SBATCH --cpus-per-task=4\n"),
    "set twice": job("OMP_NUM_THREADS=4\nOMP_NUM_THREADS=8"),
    "right": script(),
    "not Python": "def (",
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_what_is_not_certain_is_left_alone(folder, case):
    file = "job.sbatch" if "SBATCH" in UNCERTAIN[case] else "train.py"
    (folder / file).write_text(UNCERTAIN[case])
    assert list(edits([file])) == []


def test_a_diff_can_be_applied_and_the_mode_stays(typed, folder):
    file = folder / "job.sbatch"
    file.write_text(job("OMP_NUM_THREADS=4", cpus="").rstrip("\n"))
    file.chmod(0o750)
    status, out, _ = typed("lint", "--diff", "job.sbatch")
    assert status == 0 and "+export OMP_NUM_THREADS=4" in out
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run(["git", "apply", "-"], input=out, text=True, check=True)
    by_git = file.read_text()
    file.write_text(job("OMP_NUM_THREADS=4", cpus="").rstrip("\n"))
    file.chmod(0o750)
    status, out, err = typed("lint", "--fix", "job.sbatch")
    assert (status, file.read_text(), file.stat().st_mode & 0o777) == (0, by_git, 0o750)
    assert "job.sbatch: fixed: cpus-per-task-missing, unset-variable" in err
    assert typed("lint", "--fix", "job.sbatch")[2] == ""


def test_standard_input_and_two_formats_are_refused(typed, folder):
    for words, rivals in (
        (("--fix", "-"), "--fix and -"),
        (("--diff", "-"), "--diff and -"),
        (("--fix", "--diff", "x"), "--diff and --fix"),
        (("--json", "--diff", "x"), "--json and --diff"),
    ):
        status, _, err = typed("lint", *words)
        assert status == 2 and f"{rivals} exclude each other" in err
    (folder / "train.py").write_text(script())
    assert typed("lint", "--fix", "--json", "train.py")[0] == 0
