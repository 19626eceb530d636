"""Faults of ranks that compute on accelerators, one each, over the collectives of these: NCCL on GPUs of NVIDIA."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from faults import stage as stages
from faults.stage import fault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two GPUs"),
]

HANG = {"limit_s": 5 + 10, "options": ("--hang-timeout", "5")}
PLACE = r"train\.py:\d+"


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "RESULTS", tmp_path / "results.jsonl")  # the table is of CPUs
    with stages.stage(tmp_path) as made:
        yield made


def script(stage, step=""):
    """Write the script of tests/faults with each rank on a device of its own."""
    stage.script(
        without=['dist.init_process_group("gloo")'],
        start="""
        device = torch.device(torch.accelerator.current_accelerator().type, rank)
        torch.accelerator.set_device_index(rank)
        own = dist.get_default_backend_for_device(device)
        dist.init_process_group(f"cpu:gloo,{device.type}:{own}")
        """,
        model="net = net.to(device)",
        step=f"x, y = x.to(device), y.to(device)\n{step}",
    )


@fault("loss of a rank", finding="rank-died-signal", names=("rank 1", "SIGKILL|signal 9"))
def test_a_rank_is_lost(stage):
    script(stage)
    stage.launch()
    pid = stage.up(1)
    stage.broken()
    os.kill(pid, signal.SIGKILL)


@fault("hang of a rank", finding="rank-stuck-in-code", names=("rank 1", PLACE), **HANG)
def test_a_rank_hangs(stage):
    script(stage, "if rank == 1 and step == 5:\n    broke()\n    time.sleep(600)")
    stage.launch()


@fault("collective of one rank", finding="conditional-collective", names=("rank 0", PLACE), **HANG)
def test_a_collective_of_one_rank(stage):
    script(
        stage,
        "if rank == 0 and step == 5:\n    broke()\n    dist.all_reduce(torch.ones(3, device=device))",
    )
    stage.launch()


@fault("device out of memory", finding="cuda-oom", names=("rank 1", "memory"))
def test_a_device_has_no_memory_left(stage):
    script(
        stage,
        "if rank == 1 and step == 5:\n    broke()\n    torch.empty(1 << 42, device=device)",
    )
    stage.launch()
