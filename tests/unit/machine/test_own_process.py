"""A process of paceline's own runs nothing that lies in the current folder, whatever it is for."""

import os
import shutil
import subprocess
import sys

import pytest

from paceline.diagnose.doctor.collectors import peers
from paceline.launch.in_rank import rank_entry
from paceline.launch.plan.task import RankTask
from paceline.measure import trial
from paceline.slurm.jobs import submit
from paceline.testing import server
from paceline.train.trainer import start
from paceline.why import gather

# What these processes import: us, what we need, and modules of the standard library.
PLANTED = ("paceline", "torch", "click", "pytest", "psutil", "runpy", "json", "logging")
SPAWNED = RankTask(0, "script", "train.py", method="spawn", python=sys.executable)
# Each returns a command, or starts it.
STARTS = {
    "why": lambda folder: gather._collector(gather.WatchOptions(0.01)),
    "doctor": lambda folder: peers.try_pairs(()),
    "trial": lambda folder: trial.start(["--version"], environ={}, output=None),
    "job script": lambda folder: [*submit.own_command(), "--version"],
    "ranks of a Trainer": lambda folder: start.start_ranks(2, 1),
    "spawned rank": lambda folder: rank_entry.execute(SPAWNED),
    "ranks of tests": lambda folder: server.command(
        server.ServerSettings(-1, str(folder), (), str(folder), 0, False, ())
    ),
}


@pytest.fixture
def here(monkeypatch, tmp_path):
    """The current folder, in which somebody has put modules."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text("open(__file__ + '.was-run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Started(Exception):
    """A process would have been started."""


def command_of(call, monkeypatch):
    """The command that a call returns or starts, where the installed one is missing."""

    def begin(command, **options):
        raise Started(command, options.get("env"))

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", begin)
        for name in ("execv", "execvp"):
            patch.setattr(os, name, lambda program, command: begin(command))
        patch.setattr(rank_entry.env, "put", lambda name, value: None)
        patch.setattr(submit.os, "access", lambda *_: False)
        patch.setattr(start, "_script", lambda: ["--version"])
        patch.setattr(sys, "argv", ["train.py"])
        try:
            return call(), None
        except Started as started:
            return started.args


@pytest.mark.parametrize("kind", STARTS)
def test_nothing_of_the_current_folder_is_run(kind, here, monkeypatch):
    command, environ = command_of(lambda: STARTS[kind](here), monkeypatch)
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False
    )
    assert [path.name for path in here.glob("*.was-run")] == []
    assert "No module named" not in ended.stderr
    # a script of the user's that such a process starts would inherit it
    assert "PYTHONSAFEPATH" not in (environ or {})


PYTHONS = [shutil.which(f"python3.{minor}") for minor in (10, 11, 12, 13)]


@pytest.mark.parametrize("python", sorted({sys.executable, *filter(None, PYTHONS)}))
def test_no_version_of_python_searches_the_current_folder(python, here):
    from paceline.machine import own_process

    if subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
        pytest.skip("not an interpreter, but a shim of one")
    command = own_process.command("-h", module="json.tool", python=python)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in here.glob("*.was-run")] == []
