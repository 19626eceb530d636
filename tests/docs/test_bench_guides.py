"""The commands of the guides for bench, forecast and report, one page after the other, in one folder."""

import os
import re
import shutil
from pathlib import Path

import pytest

from pages import Block, blocks, replaced, run, surroundings

HERE = Path(__file__).parent
GUIDES = HERE.parents[1] / "docs" / "guides"
TRAININGS = [f"paceline run --nproc-per-node 2 train.py --lr {rate}" for rate in ("0.05", "0.2")]
# What a reader types differently: the name of a run, and no more ranks than this machine has CPUs.
RUN, BENCH = "20261122-203119-train-d9c8", "NAME"
BENCH_COMMAND, REGRESSION = "paceline bench", "--max-regression"
RANKS = {"--world 1,2,4": "--world 1,2"}


def commands(guide):
    """The commands of paceline in a guide, without those that srun or another launcher starts."""
    shown = [
        block
        for block in blocks((GUIDES / f"{guide}.md").read_text())
        if block.language in ("bash", "console")
    ]
    lines = [line for block in shown for line in block.commands]
    return [line for line in lines if line.startswith("paceline ")]


def first(folder, kind):
    """The name of the first run of a kind, of a bench or a training."""
    return min(path.name for path in (folder / "paceline-runs").glob(f"*-{kind}-*"))


def trainings(folder):
    """The run folders of the two trainings, the first one first."""
    return sorted(
        f"paceline-runs/{path.name}" for path in (folder / "paceline-runs").glob("*-train-????")
    )[:2]


def typed(folder, command, expected=0):
    """Run a command in the shell; return what it printed."""
    block = Block("bash", command, line=0, status=0)
    environ = {**surroundings(), "OMP_NUM_THREADS": "1"}
    status, output = run(block, folder, environ, timeout_s=400)
    assert status == expected, f"{command}\n{output}"
    return output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_every_command_runs(tmp_path):
    shutil.copy(HERE / "programs" / "train.py", tmp_path)
    printed = {command: typed(tmp_path, command) for command in TRAININGS}
    # A bench of settings has one number of ranks, too few for a forecast, which reads the newest.
    guides = [command for guide in ("bench", "forecast", "report") for command in commands(guide)]
    for command in sorted(guides, key=lambda command: "--settings" in command):
        here = {**RANKS, RUN: first(tmp_path, "train")}
        if REGRESSION in command:  # a run of some seconds is too short for a verdict
            two = dict(zip(("BEFORE", "AFTER"), trainings(tmp_path), strict=True))
            printed[command] = typed(tmp_path, replaced(command, two), expected=2)
            assert "USE016" in printed[command]
            continue
        if BENCH in command:
            here[BENCH] = first(tmp_path, "bench-train")
        printed[command] = typed(tmp_path, replaced(command, here))
    assert len(printed) == len(TRAININGS) + 3 + 4 + 4
    benches = [output for command, output in printed.items() if command.startswith(BENCH_COMMAND)]
    for output in benches:
        assert re.search("highest bus bandwidth|what holds it back|settings on 2 ranks", output)
