"""The example: killed in the middle and started again on another number of ranks, it ends as if nothing had been."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"


def accuracies(ended):
    return dict(re.findall(r"epoch (\d+): 360 samples, accuracy (\S+) %", ended.out))


def committed(folder):
    return sorted(path.name for path in folder.glob("checkpoints/[0-9]*"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_example_survives(command, how):
    uninterrupted = command.run("--nproc-per-node", 2, DIGITS, "--epochs", 6)
    assert uninterrupted.status == 0, uninterrupted.err
    folder = command.folder / "mine"
    running = command.start("--nproc-per-node", 2, "--run-dir", folder, DIGITS, "--epochs", 6)
    deadline = time.monotonic() + 40
    while len(committed(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    running.signal(how)
    stopped = running.wait()
    assert stopped.status == (75 if how == signal.SIGTERM else -how)
    assert command.survivors(within_s=5) == []
    assert 0 < len(accuracies(stopped)) < 6, "it was in the middle"
    resumed = command.run("--nproc-per-node", 3, "--run-dir", folder, DIGITS, "--epochs", 6)
    assert resumed.status == 0, resumed.err
    assert "goes on from" in resumed.err
    assert {**accuracies(stopped), **accuracies(resumed)} == accuracies(uninterrupted)
    assert len(accuracies(resumed)) < 6, "it did not begin anew"


def test_the_example_is_short():
    assert len(DIGITS.read_text().splitlines()) < 60
