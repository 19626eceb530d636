"""Scripts that are tried for some optimizer steps: every framework, and what must not be hurt."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest

from paceline import env
from paceline.measure import trial
from paceline.measure.trial import Trial

pytestmark = pytest.mark.ci

SCRIPTS = Path(__file__).parents[1] / "faults" / "scripts"
PROGRAMS = Path(__file__).parents[1] / "healthy" / "programs"
STEPS = 12
# Most tests below try scripts on one rank; those of bench try every framework on both.
RANKS = [pytest.param(1, marks=pytest.mark.slow), 2]
# What a trial in a folder of its own must leave there: nothing but its run folder.
TRAINING = """
import atexit, os, sys
import torch
from torch.utils.data import DataLoader

accumulate, workers, steps = map(int, sys.argv[1:4])
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(torch.ones(10000, 4), batch_size=8, num_workers=workers)
atexit.register(open, "at-exit", "w")
try:
    for number, x in enumerate(loader, 1):
        net(x).sum().backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number == steps * accumulate:
            break
except BaseException:
    open("caught", "w")
finally:
    open("saved", "w")
"""


def tried(tmp_path, monkeypatch, command, *, world=1, steps=STEPS, **options):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PET_", "OMP_", "SLURM_"))]:
        monkeypatch.delenv(name)
    words = tuple(map(str, command))
    return trial.run(Trial(words, world, steps, tmp_path / "trial", **options))


def own(tmp_path, monkeypatch, *, accumulate=1, workers=0, length=10000, **options):
    (tmp_path / "train.py").write_text(TRAINING)
    command = ("train.py", accumulate, workers, length)
    return tried(tmp_path, monkeypatch, command, **options)


@pytest.mark.parametrize("world", RANKS)
@pytest.mark.parametrize("framework", ["raw", "fabric", "lightning", "accelerate"])
def test_an_unmodified_script_is_timed(tmp_path, monkeypatch, framework, world):
    script = SCRIPTS / f"{framework}_train.py"
    result = tried(tmp_path, monkeypatch, [script], world=world)
    assert result.finding is None
    assert sorted(result.steps) == list(range(2, STEPS))
    assert set(result.steps[5]) == set(result.hosts) == set(range(world))
    assert result.samples_per_step == 8 * world
    assert sorted(result.losses) == sorted(result.steps)
    # 16 x 32 + 32 and 32 x 4 + 4 parameters of 4 bytes
    assert result.gradient_bytes == sum(result.bucket_bytes) == 2704


@pytest.mark.parametrize("world", RANKS)
def test_the_trainer_of_transformers_is_timed(tmp_path, monkeypatch, world):
    pytest.importorskip("transformers")
    script = PROGRAMS / "transformers_trainer.py"
    result = tried(tmp_path, monkeypatch, [script], world=world, steps=6)
    assert result.finding is None
    assert sorted(result.steps) == list(range(2, 6))
    assert result.samples_per_step == 8 * world


def test_nothing_of_the_end_of_the_script_runs(tmp_path, monkeypatch):
    result = own(tmp_path, monkeypatch)
    assert result.finding is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "trial"]


def test_accumulated_batches_are_samples_of_one_step(tmp_path, monkeypatch):
    assert own(tmp_path, monkeypatch, accumulate=4).samples_per_step == 32


def test_workers_of_loaders_end_with_their_rank(tmp_path, monkeypatch):
    result = own(tmp_path, monkeypatch, workers=2)
    assert result.finding is None
    deadline_s = time.monotonic() + 5
    while (left := of_this_folder(tmp_path)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left == []


def of_this_folder(folder):
    """The processes that work in a folder, except this one."""
    left = []
    for process in psutil.process_iter():
        try:
            is_there = process.cwd() == str(folder)
        except psutil.Error:
            continue
        if is_there and process.pid != os.getpid():
            left.append(process.pid)
    return left


def test_a_script_that_ends_earlier_is_named(tmp_path, monkeypatch):
    finding = own(tmp_path, monkeypatch, length=5).finding
    assert finding.name == "trial-too-short"
    assert "after 5 of 12 optimizer steps" in finding.what


def test_a_script_without_optimizer_steps_is_named(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print('nothing to train')")
    assert tried(tmp_path, monkeypatch, ["train.py"]).finding.name == "trial-without-steps"


def test_a_script_that_fails_is_named_with_its_cause(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("raise RuntimeError('no such data')")
    finding = tried(tmp_path, monkeypatch, ["train.py"]).finding
    assert finding.name == "trial-failed"
    assert "no such data" in "\n".join(finding.evidence)


def test_a_script_that_hangs_is_ended(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)")
    result = tried(tmp_path, monkeypatch, ["train.py"], timeout_s=5.0)
    assert result.finding.name == "trial-too-slow"
    assert of_this_folder(tmp_path) == []


@pytest.mark.parametrize(
    "framework",
    [
        "raw",
        "lightning",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fabric", "accelerate")),
    ],
)
def test_settings_of_ddp_reach_an_unmodified_script(tmp_path, monkeypatch, framework):
    settings = {
        "bucket_cap_mb": 1,
        "static_graph": True,
        "hook": "bfloat16",
        "autocast": "bfloat16",
    }
    variables = {env.TRY_DDP: json.dumps(settings)}
    script = SCRIPTS / f"{framework}_train.py"
    result = tried(tmp_path, monkeypatch, [script], world=2, variables=variables)
    assert result.finding is None
    assert result.applied == tuple(sorted(settings))


def test_settings_of_ddp_without_ddp_are_not_applied(tmp_path, monkeypatch):
    variables = {env.TRY_DDP: '{"static_graph": true}'}
    assert own(tmp_path, monkeypatch, variables=variables).applied == ()
