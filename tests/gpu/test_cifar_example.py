"""The CIFAR-10 example on all GPUs of this machine, in bfloat16."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from starting import paceline

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10.py"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a GPU")
def test_it_learns_the_made_up_rule(tmp_path):
    words = ("--small", "--precision", "bf16-mixed", "--sync-batchnorm", "--recompute")
    ended = paceline(tmp_path, "run", EXAMPLE, *words)
    accuracy = re.findall(r"^epoch 6: .* accuracy ([\d.]+) % of 200$", ended.stdout, re.MULTILINE)
    assert float(accuracy[0]) > 50, ended.stdout
