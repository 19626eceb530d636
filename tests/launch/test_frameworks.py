"""Scripts of other frameworks train under ``paceline run`` as they do under torchrun."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
NEEDS = {
    "raw_ddp.py": "torch",
    "fabric_train.py": "lightning",
    "lightning_train.py": "lightning",
    "accelerate_train.py": "accelerate",
}


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", NEEDS)
def test_the_same_final_loss_as_under_torchrun(command, name):
    if importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    threads = {"OMP_NUM_THREADS": "1"}
    there = command.run(
        "--standalone",
        "--nproc-per-node",
        "2",
        SCRIPTS / name,
        program="torchrun",
        env=threads,
        timeout=60,
    )
    here = command.run("--nproc-per-node", "2", SCRIPTS / name, env=threads, timeout=60)
    assert (there.status, here.status) == (0, 0), here.err
    losses = [
        [line for line in ended.out.splitlines() if line.startswith("final loss")]
        for ended in (there, here)
    ]
    assert len(losses[0]) == 1
    assert losses[0] == losses[1]
    assert "steps/s a rank" in here.err  # the probe has counted, without a line changed
