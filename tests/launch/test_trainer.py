"""A script of Lightning's tutorials, as it is and with other imports and base classes: started as its reader would."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parent / "scripts" / "tutorial.py"
pytestmark = [pytest.mark.ci, pytest.mark.cold]  # started as its reader would

CHANGES = {
    "import lightning as L\n": "import paceline as L\n",
    "L.LightningDataModule": "L.DataModule",
    "L.LightningModule": "L.Module",
}


def ours():
    text = TUTORIAL.read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def printed(ended):
    return dict(
        line.rsplit(" ", 1)
        for line in ended.out.splitlines()
        if re.fullmatch(r"[a-z ]+ [\d.]+", line)
    )


@pytest.mark.timeout(120)
def test_a_tutorial_with_other_imports_and_base_classes(command):
    """Started by plain python, it starts its own ranks: ``Trainer(devices=2)``."""
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn is not installed")
    script = command.script(ours(), name="tutorial.py")
    ended = command.run(script, program=sys.executable, env={"OMP_NUM_THREADS": "1"}, timeout=100)
    assert ended.status == 0, ended.err
    found = printed(ended)
    assert (found["ranks"], found["hidden size"]) == ("2", "96")
    assert found["steps"] == str(
        5 * 11
    )  # 1297 samples in batches of 64 make 21 batches, two of them a step
    assert float(found["test accuracy"]) > 0.9
    assert "starts its ranks with: paceline run --nproc-per-node 2" in ended.err
    assert "epoch 5/5 · val_acc 0.9" in ended.err
    assert (command.folder / ended.run_dir / "metrics.csv").exists()


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.timeout(180)
def test_the_same_tutorial_under_lightning(command):
    if importlib.util.find_spec("lightning") is None:
        pytest.skip("lightning is not installed")
    ended = command.run(TUTORIAL, program=sys.executable, env={"OMP_NUM_THREADS": "1"}, timeout=160)
    assert ended.status == 0, ended.err
    found = printed(ended)
    assert (found["ranks"], found["hidden size"]) == ("2", "96")
    assert float(found["test accuracy"]) > 0.9
