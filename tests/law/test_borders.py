"""The launcher and the diagnosis work without the other parts, and training works without the launcher.

The parts are deleted from a copy of the package, so no import of ours may fail quietly either.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "paceline"


@pytest.fixture
def without(tmp_path):
    def run(parts, *command):
        package = tmp_path / "copy" / "paceline"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        for part in parts:
            shutil.rmtree(package / part)
        environ = {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        return [
            subprocess.run(
                [sys.executable, *words],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            for words in command
        ]

    return run


def test_the_launcher_explains_a_failure_without_training_measuring_and_slurm(without, tmp_path):
    (tmp_path / "train.py").write_text("import os\nassert os.environ['RANK'] != '1', 'not here'\n")
    ran, explained, helped = without(
        ("train", "measure", "slurm"),
        ("-m", "paceline", "run", "--nproc-per-node", "2", "--run-dir", "run", "train.py"),
        ("-m", "paceline", "explain", "run"),
        ("-m", "paceline", "--help"),
    )
    assert ran.returncode == 1, ran.stderr
    assert "AssertionError: not here" in ran.stderr and "train.py:2" in ran.stderr
    assert "Traceback" not in explained.stderr, explained.stderr
    assert "AssertionError: not here" in explained.stdout
    assert helped.returncode == 0 and "paceline run" in helped.stdout


def test_a_session_trains_without_the_launcher(without, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "import paceline\n"
        "session = paceline.Session()\n"
        "model = torch.nn.Linear(1, 1)\n"
        "model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "for (x,) in session.loader(TensorDataset(torch.ones(8, 1)), batch_size=4):\n"
        "    session.backward(model(x).mean())\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "print('trained to', session.step)\n"
    )
    (ran,) = without(("launch", "cli", "measure", "slurm", "why"), ("train.py",))
    assert ran.returncode == 0, ran.stderr
    assert "trained to 2" in ran.stdout
