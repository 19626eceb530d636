"""Scripts of other frameworks train under ``paceline run`` as they do under torchrun."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from paceline.cli.translate import translate
from starting import BIN

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


@pytest.fixture
def pasted(command, monkeypatch):
    """Start the line that translate prints in a shell, beside the scripts of its framework."""
    for name in NEEDS:
        (command.folder / name).write_text((SCRIPTS / name).read_text())
    launching = (SCRIPTS / "fabric_train.py").read_text()
    (command.folder / "without_launch.py").write_text(launching.replace("fabric.launch()", ""))
    monkeypatch.chdir(command.folder)
    monkeypatch.setenv("HF_HOME", str(command.folder))

    def run(typed):
        shell = f'PATH="{BIN}:$PATH"; {translate(shlex.split(typed)).line}'
        return command.run("-c", shell, program="/bin/bash", env={"OMP_NUM_THREADS": "1"})

    return run


SLOWER = """\
torchrun --standalone --nproc-per-node 2 raw_ddp.py
python -m torch.distributed.run --nproc-per-node 2 raw_ddp.py
accelerate launch --cpu --num_processes 2 accelerate_train.py
fabric run fabric_train.py --devices 2 --precision bf16-mixed
""".splitlines()
FABRIC = "fabric run --accelerator cpu --devices 2"


@pytest.mark.peers
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "typed",
    [
        pytest.param(f"{FABRIC} fabric_train.py", marks=pytest.mark.ci),
        pytest.param(f"{FABRIC} without_launch.py", marks=pytest.mark.ci),
        *(pytest.param(line, marks=pytest.mark.slow) for line in SLOWER),
    ],
)
def test_the_line_that_translate_prints_trains_on_two_ranks(pasted, typed):
    ended = pasted(typed)
    assert ended.status == 0, ended.err
    assert "ranks 2" in ended.out.splitlines()


@pytest.mark.peers
@pytest.mark.ci
def test_a_fabric_script_is_told_where_launch_belongs(pasted):
    missing = pasted("paceline run --nproc-per-node 2 without_launch.py").block
    assert "fix: fabric.launch() in the line after fabric = Fabric(...)" in missing
    forbidden = pasted("LT_CLI_USED=1 paceline run --nproc-per-node 2 fabric_train.py").block
    assert "fix: unset LT_CLI_USED" in forbidden
