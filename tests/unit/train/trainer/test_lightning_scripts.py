"""Lightning's example scripts and modules give the same numbers here, with other imports alone."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline import Module

pytestmark = [pytest.mark.ci, pytest.mark.cpu]  # Lightning computes on the CPU

RUN = Path(__file__).with_name("lightning_run.py")
QUICK = ("averaged.py", "boring.py", "bug_report_model.py", "multitask.py")
WITHOUT_RANDOM_NUMBERS = (
    "boring_modules.py",
    "curriculum.py",
    "demo_transformer.py",
    "distillation.py",
    "readme.py",
    "tabular.py",
    "text.py",
)
# Noise, dropout or shuffling: the two draw their random numbers in another order.
WITH_RANDOM_NUMBERS = ("generative_adversarial_net.py", "transformer.py")


def run(folder, *scripts):
    """Return what the Trainers of each script returned, by library and script: both on this machine."""
    command = [sys.executable, "-W", "ignore", str(RUN), str(folder), *scripts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return run(tmp_path_factory.mktemp("quick"), *QUICK)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("all")
    scripts = ["boring.py", *WITHOUT_RANDOM_NUMBERS, *WITH_RANDOM_NUMBERS]
    return {"folder": folder, **run(folder, *scripts)}


def approximately(value):
    """Lightning keeps metrics in float32."""
    if isinstance(value, dict):
        return {name: approximately(part) for name, part in value.items()}
    if isinstance(value, list):
        return [approximately(part) for part in value]
    return pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.peers
@pytest.mark.timeout(120)  # imports of Lightning, on a machine that is busy
@pytest.mark.parametrize("script", QUICK)
def test_the_numbers_are_those_of_lightning(quick, script):
    assert len(quick["lightning"][script]) > 0
    assert quick["paceline"][script] == approximately(quick["lightning"][script])


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", WITHOUT_RANDOM_NUMBERS)
def test_the_numbers_are_the_same(results, script):
    assert len(results["lightning"][script]) > 0
    assert results["paceline"][script] == approximately(results["lightning"][script])


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", WITH_RANDOM_NUMBERS)
def test_scripts_with_random_numbers_of_their_own_run(results, script):
    theirs, ours = results["lightning"][script], results["paceline"][script]
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    assert sorted(ours[0][1]) == sorted(theirs[0][1])
    assert all(math.isfinite(value) for value in ours[0][1].values())


class Boring(Module):
    """The module of Lightning's that boring.py trains, as far as its weights go."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_file_of_lightning_makes_the_module_that_a_checkpoint_of_ours_makes(results):
    made = []
    for library in ("lightning", "paceline"):
        logs = results["folder"] / library / "boring.py" / "logs" / "boring" / "version_0"
        made.append(Boring.load_from_checkpoint(logs / "checkpoints" / "last.ckpt"))
    assert torch.allclose(made[0].layer.weight, made[1].layer.weight, atol=1e-7)
