"""A rank is looked at more often while the few regular looks leave open whether it moves."""

from __future__ import annotations

import os
import time
from itertools import count

import pytest

from paceline.launch.monitor import child_processes
from paceline.launch.monitor.position import Frame
from paceline.launch.monitor.stacks import Look
from paceline.why import look
from paceline.why.identity import RankIdentity
from paceline.why.processes import RankProcess
from paceline.why.rank_state import IN_PLACE, RUNNING, STILL

RANK = RankProcess(
    os.getpid(), RankIdentity("torchrun", 0, 1), os.getppid(), "torchrun", "train.py"
)


def watch(monkeypatch, line_at, *, works=True):
    """Observe this process for a second; return its motion and the number of looks.

    Look number n finds the rank in ``line_at(n)``. ``works``: the rank uses its CPU.
    """
    numbers = count()

    def sample(ranks, pool, *, with_recorder):
        number = next(numbers)
        frame = Frame("/home/me/train.py", line_at(number), "main", "step()", user=True)
        observed = Look((frame,), cpu_s=0.2 * number * works)
        process = child_processes.look(os.getpid())
        return [look.Sample(time.monotonic(), observed, process, {})]

    monkeypatch.setattr(look, "_sample", sample)
    monkeypatch.setattr(look.processes, "find", lambda: [])
    (account,) = look.watch_ranks([RANK], seconds=1)
    return account.motion, next(numbers)


def test_two_regular_looks_of_a_second_are_enough_for_a_rank_that_moves(monkeypatch):
    assert watch(monkeypatch, lambda number: number) == (RUNNING, 2)


@pytest.mark.parametrize("works", [True, False])
def test_a_rank_in_one_place_is_looked_at_to_the_end(monkeypatch, works):
    monkeypatch.setattr(look, "_MAX_LOOKS", 4)
    monkeypatch.setattr(look, "round", lambda seconds: 3, raising=False)
    # between the second and the third look and the third and the fourth, if it works
    expected = (IN_PLACE, 4 + 2 * len(look._BETWEEN)) if works else (STILL, 4)
    assert watch(monkeypatch, lambda number: 50, works=works) == expected


def test_a_further_look_sees_that_a_rank_moves(monkeypatch):
    monkeypatch.setattr(look, "round", lambda seconds: 2, raising=False)
    # the third look is the first that no regular one is
    assert watch(monkeypatch, lambda number: 60 if number == 2 else 50) == (RUNNING, 4)


def test_the_stand_of_a_rank_that_ends_meanwhile_is_its_own():
    """Under the number of rank 0 it would replace the proof that rank 0 is part of."""
    rank = RankProcess(os.getpid(), RankIdentity("torchrun", 3, 4), 1, "torchrun", "train.py")
    account = look._account(rank, [look.Sample(0.0, Look(), None)] * 2)
    assert (account.position.ended, account.stand.rank) == (True, 3)
