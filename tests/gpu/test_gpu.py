"""What needs a GPU: skipped without one, run by hand or where a machine has one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ROOT = Path(__file__).parents[2]
PACELINE = Path(sys.executable).parent / "paceline"


def paceline_run(folder, *args):
    return subprocess.run(
        [PACELINE, "run", *map(str, args)], cwd=folder, capture_output=True, text=True, timeout=55, check=False
    )


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
    assert float(re.search(r"test: 360 samples, accuracy ([\d.]+) %", ended.stdout)[1]) >= 97


def test_nccl_debug_is_summarised(tmp_path):
    ended = paceline_run(tmp_path, "--nccl-debug", ROOT / "tests" / "launch" / "scripts" / "raw_ddp.py")
    assert ended.returncode == 0, ended.stderr
    assert "NCCL interface:" in ended.stderr
