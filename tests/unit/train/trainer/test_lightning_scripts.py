"""Lightning's example scripts and modules give the same numbers here, with other imports alone."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline import Module

RUN = Path(__file__).with_name("lightning_run.py")
NUMBERS = Path(__file__).with_name("lightning_scripts") / "numbers.json"  # what Lightning returns
WITHOUT_RANDOM_NUMBERS = (
    "averaged.py",
    "boring.py",
    "boring_modules.py",
    "bug_report_model.py",
    "curriculum.py",
    "demo_transformer.py",
    "distillation.py",
    "multitask.py",
    "readme.py",
    "tabular.py",
    "text.py",
)
# Noise, dropout or shuffling: the two draw their random numbers in another order.
WITH_RANDOM_NUMBERS = ("generative_adversarial_net.py", "transformer.py")


def run(library, folder, *scripts):
    """Return what the Trainers of each script returned."""
    command = [sys.executable, "-W", "ignore", str(RUN), library, str(folder), *scripts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return run("paceline", tmp_path_factory.mktemp("ours"), *WITHOUT_RANDOM_NUMBERS)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What the Trainers of each script returned, by library and script."""
    by_library = {"folders": {}}
    for library in ("lightning", "paceline"):
        folder = by_library["folders"][library] = tmp_path_factory.mktemp(library)
        scripts = [*WITHOUT_RANDOM_NUMBERS, *WITH_RANDOM_NUMBERS]
        by_library[library] = run(library, folder, *scripts)
    return by_library


def approximately(value):
    """Lightning keeps metrics in float32."""
    if isinstance(value, dict):
        return {name: approximately(part) for name, part in value.items()}
    if isinstance(value, list):
        return [approximately(part) for part in value]
    return pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.peers
@pytest.mark.parametrize("script", WITHOUT_RANDOM_NUMBERS)
def test_the_numbers_are_those_of_lightning(ours, script):
    recorded = json.loads(NUMBERS.read_text())[script]
    assert len(recorded) > 0
    assert ours[script] == approximately(recorded)


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("script", WITHOUT_RANDOM_NUMBERS)
def test_the_numbers_are_the_same(results, script):
    recorded = json.loads(NUMBERS.read_text())[script]
    assert results["lightning"][script] == approximately(recorded)
    assert results["paceline"][script] == approximately(recorded)


@pytest.mark.peers
@pytest.mark.slow
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
def test_a_file_of_lightning_makes_the_module_that_a_checkpoint_of_ours_makes(results):
    made = []
    for library in ("lightning", "paceline"):
        folder = results["folders"][library] / "boring.py" / "logs" / "boring" / "version_0"
        made.append(Boring.load_from_checkpoint(folder / "checkpoints" / "last.ckpt"))
    assert torch.allclose(made[0].layer.weight, made[1].layer.weight, atol=1e-7)
