"""A rank tells which DataLoader worker it waits for."""

import os
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from paceline import counters
from paceline.launch.probe import awaited_worker


class Slow(Dataset):
    """Its second sample takes a moment, in which a copy of the rank's slot is left in a file."""

    def __init__(self, slot, seen):
        self.slot, self.seen = slot, seen

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 1:
            while (
                not self.slot[counters.AWAITED_NS] or self.slot[counters.AWAITED_PID] != os.getpid()
            ):
                time.sleep(0.01)
            self.seen[0] = os.getpid()
        return torch.tensor(float(index))


@pytest.fixture
def board():
    handle = counters.create(1)
    yield counters.SharedCounters(handle, 1)
    os.close(handle)


@pytest.fixture
def slot(board):
    uninstall = awaited_worker.install(board.slot(0))
    yield board.slot(0)
    uninstall()


def test_the_worker_that_is_waited_for_is_told_while_it_is(board, slot):
    seen = torch.zeros(1, dtype=torch.int64).share_memory_()
    assert [float(x) for x in DataLoader(Slow(slot, seen), batch_size=None, num_workers=2)] == [
        0,
        1,
        2,
        3,
    ]
    assert seen[0] > 0
    assert board.read_awaited(0).pid == 0


def test_a_loader_without_workers_writes_nothing(slot):
    list(DataLoader(torch.arange(8.0), batch_size=4))
    assert list(slot) == [0] * counters.SLOT_LENGTH


@pytest.mark.parametrize(("persistent", "forks"), [(False, 1), (True, 0)])
def test_workers_that_are_forked_for_a_second_loop_are_counted(board, slot, persistent, forks):
    loader = DataLoader(
        torch.arange(8.0), batch_size=4, num_workers=1, persistent_workers=persistent
    )
    list(loader)
    assert board.read_awaited(0).forked_again == 0
    list(loader)
    assert board.read_awaited(0).forked_again == forks


def test_two_loaders_of_one_loop_each_are_not_counted(board, slot):
    for _ in range(2):
        list(DataLoader(torch.arange(8.0), batch_size=4, num_workers=1))
    assert board.read_awaited(0).forked_again == 0


def test_in_any_order_no_worker_is_named(slot):
    class Iterator:
        _task_info, _rcvd_idx, _in_order = {0: (0,)}, 0, False

    assert awaited_worker._awaited(Iterator()) == 0


def test_a_torch_that_keeps_its_books_otherwise_is_none(slot):
    assert awaited_worker._awaited(object()) == 0
