"""The stages of a step as a rank times them, with torch's own loops."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from paceline import counters
from paceline.launch.probe import probe, stage_clock

OPTIMIZER, OTHER, DATA, FORWARD, BACKWARD, EXCHANGE = range(6)
PAUSE_S = 0.02


@pytest.fixture
def board(monkeypatch):
    monkeypatch.setattr(stage_clock, "SHARE", 1.0)  # times every step
    shared = counters.SharedCounters(counters.create(1), 1)
    uninstall = probe.install(shared.slot(0))
    yield shared
    uninstall()


class Samples(Dataset):
    def __init__(self, pause_s=0.0):
        self.pause_s = pause_s

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return torch.ones(4)


class Pausing(torch.autograd.Function):
    """Sleeps in backward, and in a callback that the engine runs at its end, as DDP waits."""

    where = ""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Pausing.where == "backward":
            time.sleep(PAUSE_S)
        if Pausing.where == "exchange":
            torch.autograd.Variable._execution_engine.queue_callback(lambda: time.sleep(PAUSE_S))
        return gradient


def train(where="", *, accumulate=1):
    Pausing.where = where
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(Samples(PAUSE_S if where == "data" else 0.0))
    for number, x in enumerate(loader, 1):
        if where == "forward":
            time.sleep(PAUSE_S)
        Pausing.apply(net(x)).sum().backward()
        if number % accumulate == 0:
            if where == "optimizer":
                time.sleep(PAUSE_S)
            optimizer.step()
            optimizer.zero_grad()
            if where == "other":
                time.sleep(PAUSE_S)


def stages_of(board):
    return [stages for _, stages in sorted(board.read_stages(0).items())]


@pytest.mark.parametrize(
    ("place", "where"),
    list(enumerate(("optimizer", "other", "data", "forward", "backward", "exchange"))),
)
def test_time_goes_to_its_stage(board, place, where):
    train(where)
    steps = stages_of(board)
    assert len(steps) >= 5
    assert all(stages[place] >= PAUSE_S * 1e9 for stages in steps)
    others = [sum(stages) - stages[place] for stages in steps]
    assert sorted(others)[len(others) // 2] < PAUSE_S * 1e9


def test_micro_batches_of_a_step_are_added_up(board):
    train("forward", accumulate=3)
    steps = stages_of(board)
    assert steps
    assert all(stages[FORWARD] >= 3 * PAUSE_S * 1e9 for stages in steps)


def test_a_short_run_has_early_steps_and_few_later_ones():
    step, timed = 2, []
    while (step := stage_clock.next_timed(step, 64)) < 1000:
        timed.append(step)
        step += 1
    assert timed[:16] == [*range(16, 32)]
    assert 1000 // 64 - 2 <= len(timed[16:]) <= 1000 // 64 + 2
    assert all(counters.rarity(step) >= 6 for step in timed[16:])


@pytest.mark.parametrize(
    ("step_ns", "every"),
    [(100_000, 512), (1_000_000, 64), (10_000_000, 8), (100_000_000, 1), (0, 1024)],
)
def test_the_shorter_the_step_the_fewer_are_timed(step_ns, every):
    assert stage_clock.choose_every(step_ns, cost_ns=100_000) == every


def test_a_backward_within_a_backward_is_part_of_it(board):
    """A reentrant checkpoint calls torch.autograd.backward from inside."""
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in DataLoader(Samples(0.01)):
        hidden = torch.utils.checkpoint.checkpoint(net, x.requires_grad_(), use_reentrant=True)
        hidden.sum().backward()
        optimizer.step()
    steps = stages_of(board)
    assert steps
    assert all(stages[BACKWARD] > 0 for stages in steps)


def test_a_loss_without_a_graph_fails_as_it_would(board):
    train()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()


def test_the_graph_of_a_loss_is_left_without_hooks(board):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in DataLoader(Samples(0.01)):
        loss = net(x).sum()
        loss.backward(retain_graph=True)
        before = stages_of(board)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before is not None
    assert all(stages[EXCHANGE] < 0.01e9 for stages in stages_of(board))


def test_an_evaluation_of_many_batches_is_part_of_its_step(board, monkeypatch):
    monkeypatch.setattr(stage_clock, "MAX_MARKS", 16)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        for x in DataLoader(Samples(), batch_size=12):
            net(x).sum().backward()
            optimizer.step()
        for _ in range(3):
            for _ in DataLoader(Samples()):
                time.sleep(PAUSE_S / 10)
    timed = stages_of(board)
    assert len(timed) == 4  # the first step is not timed, and the last one has no end
    assert all(stages[OTHER] > 36 * PAUSE_S / 10 * 1e9 for stages in timed)
