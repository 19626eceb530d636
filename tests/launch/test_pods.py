"""Pods of Kubernetes, as far as a launcher sees them: their variables, and that they come apart."""

from __future__ import annotations

import time

import pytest

from recorded import environment
from starting import free_port

pytestmark = pytest.mark.ci

SAYS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
# An image is pulled for longer than an ordinary node may refuse its port, which is 60 s: times 0.05
# that is 3 s, after which the first pod starts.
SCALED = {"PACELINE_TEST_TIME_FACTOR": "0.05"}


def pod(name, rank, port, **changes):
    """The variables of one of two pods, which meet on this machine."""
    return environment(name, RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **changes)


def test_pods_that_come_apart_meet_and_the_first_to_come_says_whom_it_awaits(command):
    command.script(SAYS)
    port = str(free_port())
    worker = command.start("train.py", env={**pod("pytorchjob-1.5", 1, port), **SCALED})
    time.sleep(6)
    master = command.start("train.py", env={**pod("pytorchjob-1.5", 0, port), **SCALED})
    ended = [master.wait(), worker.wait()]
    assert [each.status for each in ended] == [0, 0], ended
    assert "rank 0 of 2" in ended[0].out
    assert "2 nodes x 1 rank" in ended[0].err
    assert "pod 0 of 2 (WORLD_SIZE and RANK)" in ended[0].err
    assert f"waiting for the head at 127.0.0.1:{port}: port refused" in ended[1].err
    assert "fix: kubectl get pods" in ended[1].err


def test_the_first_pod_says_which_one_is_missing_and_ends_at_the_limit(command):
    command.script(SAYS)
    changes = {"MASTER_ADDR": "localhost", "PET_MASTER_ADDR": "localhost", "PET_NODE_RANK": "0"}
    port = str(free_port())
    master = environment(
        "pytorchjob-1.9",
        **{**changes, "RANK": "0", "PET_MASTER_PORT": port, "PET_NPROC_PER_NODE": "1"},
    )
    ended = command.run("--roll-call-timeout", "2", "train.py", env={**master, **SCALED})
    assert ended.status == 1
    assert "waiting for node 1 of 2" in ended.err
    assert "node-missing" in ended.block
    assert "fix: kubectl get pods, and kubectl describe pod NAME" in ended.block
