"""What `paceline top` and `paceline report` show of unmodified scripts, in every framework."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from printed_json import read_json
from starting import BIN

pytestmark = pytest.mark.ci

SCRIPTS = Path(__file__).parents[1] / "faults" / "scripts"
PROGRAMS = Path(__file__).parents[1] / "healthy" / "programs"
EPOCHS, STEPS = 12, 96  # 8 steps an epoch


def paceline(folder, *words):
    ended = subprocess.run(
        [BIN / "paceline", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def trained(command, text):
    command.script(text)
    ended = command.run("--nproc-per-node", 2, "train.py", timeout=100)
    assert ended.status == 0, ended.err
    return ended


@pytest.mark.parametrize("framework", ["raw", "fabric", "lightning", "accelerate"])
def test_where_the_time_went_is_said_of_every_framework(command, framework):
    text = (SCRIPTS / f"{framework}_train.py").read_text()
    ended = trained(command, text.replace("= 128, 8, 3,", f"= 128, 8, {EPOCHS},"))
    assert "paceline: step " in ended.err and "compute" in ended.err
    speed = read_json("top", paceline(command.folder, "top", ended.run_dir, "--once", "--json"))
    assert (speed["outcome"], speed["steps"]) == ("succeeded", STEPS)
    assert speed["samples_per_batch"] == 16
    assert speed["loss"] > 0
    step = speed["step"]
    parts = sum(step["stages"].values()) + step["exchange"] + step["waiting"]
    assert parts == pytest.approx(step["seconds"])
    assert min(step["stages"].values()) >= 0
    assert "  forward  " in paceline(command.folder, "top")  # the latest run
    report = paceline(command.folder, "report", ended.run_dir, "--text")
    assert "succeeded" in report and f"{STEPS} steps" in report and "2 ranks" in report


def test_the_trainer_of_transformers_is_shown_too(command):
    pytest.importorskip("transformers")
    text = (PROGRAMS / "transformers_trainer.py").read_text()
    ended = trained(command, text.replace("num_train_epochs=2", f"num_train_epochs={EPOCHS}"))
    speed = read_json("top", paceline(command.folder, "top", ended.run_dir, "--once", "--json"))
    assert (speed["outcome"], speed["steps"]) == ("succeeded", 4 * EPOCHS)
    assert (speed["samples_per_batch"], speed["tokens_per_batch"]) == (16, 128)
    assert speed["step"]["timed_steps"] >= 8
    assert "succeeded" in paceline(command.folder, "report", ended.run_dir, "--text")
