"""The last look at parameters: which are not a number, and when that counts."""

import gc
import os
import threading
import time

import pytest
import torch
from torch import nn

from paceline import counters
from paceline.launch.probe.last_look import LastLook, first_nan

LATER = float("inf")


@pytest.fixture
def board():
    handle = counters.create(1)
    made = counters.SharedCounters(handle, 1)
    made.slot(0)[counters.STEPS], made.slot(0)[counters.PHASE] = 5, counters.RETURNED
    yield made
    os.close(handle)


def broken(value=float("nan"), *, place=1, dtype=torch.float32):
    tensors = [torch.ones(3, 4, dtype=dtype), torch.ones(5, dtype=dtype)]
    tensors[place].view(-1)[2] = value
    return tensors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 1])
def test_the_first_parameter_with_a_nan(dtype, place):
    tensors = broken(place=place, dtype=dtype)
    assert first_nan(tensors, deadline_s=LATER) is tensors[place]


@pytest.mark.parametrize("value", [1.0, float("inf"), -float("inf"), 3e38])
def test_what_is_large_or_infinite_is_a_number(value):
    assert (
        first_nan([torch.full((4,), value), torch.tensor([value, -value])], deadline_s=LATER)
        is None
    )


def test_what_has_no_floating_values_is_left_out():
    odd = [
        torch.ones(2, dtype=torch.int8),
        torch.empty(3, device="meta"),
        torch.eye(2).to_sparse(),
        torch.empty(0),
        "x",
    ]
    tensors = broken()
    assert first_nan([*odd, *tensors], deadline_s=LATER) is tensors[1]


def test_there_is_an_end_to_looking():
    assert first_nan(broken(), deadline_s=time.monotonic() - 1) is None


def trained(board, value):
    net = nn.Linear(2, 1)
    net.bias.data.fill_(value)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    look = LastLook(board.slot(0))
    look.follow(optimizer)
    return net, optimizer, look


def test_a_nan_at_the_end_is_written_with_its_name(board):
    net, optimizer, look = trained(board, float("nan"))
    look.at_end()
    assert (board.read_nan(0), len(optimizer.param_groups), net.out_features) == ("bias", 1, 1)


def test_finite_parameters_are_not(board):
    _net, _optimizer, look = trained(board, 1.0)
    look.at_end()
    assert board.read_nan(0) == ""


def test_a_nan_that_was_trained_on_from_does_not_count(board):
    _net, _optimizer, look = trained(board, float("nan"))
    look.at_end()
    board.slot(0)[counters.STEPS] = 6  # of another model
    assert board.read_nan(0) == ""


def test_a_rank_that_goes_on_is_not_judged(board):
    _net, _optimizer, look = trained(board, float("nan"))
    look.at_end()
    board.slot(0)[counters.PHASE] = counters.RUNNING
    assert board.read_nan(0) == ""


def test_an_optimizer_that_is_freed_is_looked_at_before(board):
    net, optimizer, _look = trained(board, float("nan"))
    del optimizer
    gc.collect()
    assert (board.read_nan(0), net.out_features) == ("bias", 1)


def test_not_from_another_thread(board):
    held = list(trained(board, float("nan")))
    thread = threading.Thread(target=lambda: held.pop(1))
    thread.start()
    thread.join()
    gc.collect()
    assert board.read_nan(0) == ""


def test_without_a_step_nothing_is_looked_at(board):
    board.slot(0)[counters.STEPS] = 0
    _net, _optimizer, look = trained(board, float("nan"))
    look.at_end()
    assert board.read_nan(0) == ""
