"""What needs a GPU: skipped without one, run by hand or where a machine has one.

What is not CUDA's own runs on the emulated accelerator too (tests/device/test_gpu_tests.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import Session
from paceline.train.session import run_folder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU"),
]
of_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")

ROOT = Path(__file__).parents[2]
PACELINE = Path(sys.executable).parent / "paceline"


def paceline_run(folder, *args):
    return subprocess.run(
        [PACELINE, "run", *map(str, args)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


@of_cuda
def test_one_rank_per_gpu_over_nccl(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\ntorch.cuda.set_device(device)\n"
        "dist.init_process_group('nccl', device_id=device)\n"
        "x = torch.ones(1, device=device); dist.all_reduce(x)\n"
        "print(dist.get_world_size(), x.item()); dist.destroy_process_group()\n"
    )
    ended = paceline_run(tmp_path, "train.py")
    gpus = torch.cuda.device_count()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{gpus} {float(gpus)}\n"
    assert f"x {gpus} rank" in ended.stderr
    assert "one per GPU" in ended.stderr


def test_the_example_trains_on_gpus(tmp_path):
    ended = paceline_run(tmp_path, ROOT / "examples" / "digits.py")
    assert ended.returncode == 0, ended.stderr
    assert float(re.search(r"epoch 10: 360 samples, accuracy ([\d.]+) %", ended.stdout)[1]) >= 97


@of_cuda
def test_nccl_debug_is_summarised(tmp_path):
    ended = paceline_run(
        tmp_path, "--nccl-debug", ROOT / "tests" / "launch" / "scripts" / "raw_ddp.py"
    )
    assert ended.returncode == 0, ended.stderr
    assert "NCCL interface:" in ended.stderr


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed", "bf16-true", "64-true"])
def test_a_training_goes_on_from_its_checkpoint(tmp_path, precision):
    """The second half after a restore is the second half of the whole: batches copied ahead, pinned memory, dropout."""

    def losses(folder, *, until=None):
        session = Session(precision=precision, seed=0, run_dir=folder)
        x = torch.randn(70, 8, generator=torch.Generator().manual_seed(0))
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        loader = session.loader(
            TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True
        )
        session.restore()
        found = []
        for _ in session.epochs(2):
            for rows, target in loader:
                assert rows.device == session.device
                loss = nn.functional.mse_loss(
                    model(rows), target.to(torch.float64 if "64" in precision else None)
                )
                session.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
                if len(found) == until:
                    session.save(wait=True)
                    return found
        return found

    whole = losses(tmp_path / "whole")
    first = losses(tmp_path / "parts", until=7)
    run_folder.reset()  # the rest is another process's to train
    assert first + losses(tmp_path / "parts") == pytest.approx(whole, rel=1e-5)
    assert whole[-1] < whole[0]


def script(folder, *, before="", within="", after=""):
    """Write a training whose products take some milliseconds on the GPU; code is added to its step."""
    (folder / "train.py").write_text(
        "import time\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "device = torch.accelerator.current_accelerator()\n"
        "model = nn.Linear(256, 256).to(device); optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
        "data = TensorDataset(torch.randn(2000, 256)); kept = []\n"
        "for epoch in range(4):\n"
        "    for (x,) in DataLoader(data, 10):\n"
        f"        x = x.to(device); {within}\n"
        "        loss = model(x).square().mean(); optimizer.zero_grad(); loss.backward()\n"
        f"        {before}\n"
        "        optimizer.step()\n"
        f"        {after}\n"
        "        value = loss.item()\n"
    )
    ended = paceline_run(folder, "--run-dir", "run", "train.py")
    return ended, folder / "run"


# 20 million cycles are about 10 ms.
SLEEP = "torch.cuda._sleep(20_000_000)"


@of_cuda
@pytest.mark.parametrize(
    ("place", "stage"), [("within", "forward"), ("before", "optimizer"), ("after", "other")]
)
def test_a_slow_kernel_is_charged_to_its_stage(tmp_path, place, stage):
    """And not to ``item()``, in which the CPU waits for it."""
    ended, run = script(tmp_path, **{place: SLEEP})
    assert ended.returncode == 0, ended.stderr
    step = json.loads((run / "speed.json").read_text())["step"]
    assert step["stages"][stage] == max(step["stages"].values()) > 0.5 * step["seconds"], step


def test_memory_of_the_gpu_is_in_the_speed_of_a_run(tmp_path):
    # Ranks are described every 5 s, and 800 steps may take less.
    keep = "kept.append(torch.empty(1 << 18, device=device)); time.sleep(0.01)"
    ended, run = script(tmp_path, after=keep)
    assert ended.returncode == 0, ended.stderr
    speed = json.loads((run / "speed.json").read_text())
    (rank,) = speed["ranks"]
    assert speed["gpu_memory_bytes"] == rank["gpu_memory_bytes"]
    assert 300 << 20 < rank["gpu_memory_bytes"] < 900 << 20  # of 800 MiB at the end


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("x = x.cpu()", "device-mismatch"),
        ("kept.append(torch.empty(1 << 42, device=device))", "cuda-oom"),
        pytest.param(
            "kept.append(torch.ones(3, device=device)[x[0].long() + 7].sum().item())",
            "device-side-assert",
            marks=of_cuda,
        ),
    ],
)
def test_mistakes_are_named(tmp_path, code, name):
    ended, _ = script(tmp_path, within=code)
    assert ended.returncode == 1
    assert f" {name}]" in ended.stderr, ended.stderr


@of_cuda
def test_more_ranks_than_gpus_are_verified_on_cpus(tmp_path):
    ranks = torch.cuda.device_count() + 1
    ended = subprocess.run(
        [PACELINE, "verify", "--world", f"1,{ranks}", ROOT / "examples" / "digits.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads that wait for each other spin
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"trials ran on CPUs: more ranks than GPUs ({ranks - 1})" in ended.stdout
