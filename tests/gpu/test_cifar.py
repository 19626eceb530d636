"""The CIFAR benchmark runs from its files to its table: on the CPU everywhere, on a GPU where there is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu_cifar.py"


def table(tmp_path, *options):
    """Return what the benchmark prints, and each side's loss after its last epoch."""
    pytest.importorskip("PIL")
    ended = subprocess.run(
        [sys.executable, BENCHMARK, *map(str, options)],
        cwd=tmp_path,
        # Threads that wait for each other spin, which takes minutes on a busy machine.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rows = re.findall(r"^(recipe|paceline\S*(?: \S+)?) .* ([\d.]+)$", ended.stdout, re.MULTILINE)
    return ended.stdout, {name: float(loss) for name, loss in rows}


@pytest.mark.slow
def test_both_sides_train_on_the_cpu(tmp_path):
    printed, losses = table(
        tmp_path,
        *("--device", "cpu", "--images", 256, "--tiny", "--epochs", 1, "--workers", 1),
    )
    assert list(losses) == ["recipe", "paceline"]
    assert max(losses.values()) < 2.2, "guessing among ten classes costs 2.3"
    assert re.search(r"recipe over paceline: [\d.]+x \([\d.]+ to [\d.]+\);", printed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_both_sides_train_on_a_gpu(tmp_path):
    printed, losses = table(
        tmp_path, "--images", 2560, "--tiny", "--epochs", 1, "--workers", 2, "--compile"
    )
    assert list(losses) == ["recipe", "paceline"]
    assert torch.cuda.get_device_name() in printed
