"""Local gradients of a few steps: what is sampled, when nothing is, and that nothing of it stays behind."""

import time

import pytest
import torch
from torch import nn

from paceline.launch.probe.gradients import BACKWARDS, LocalGradients, are_averaged, exchanged


def reduction(count, *, name="gloo:all_reduce", created_ns=None):
    created = time.time_ns() if created_ns is None else created_ns
    return {"profiling_name": name, "input_sizes": [[count]], "time_created_ns": created}


@pytest.mark.parametrize(
    ("sizes", "averaged"),
    [
        ([36], True),
        ([20, 16], True),  # buckets
        ([1, 20, 16, 1], True),  # beside a loss that is logged
        ([16, 16], False),
        ([72], False),
        ([], False),
    ],
)
def test_gradients_are_averaged_where_reductions_carry_as_many_elements(sizes, averaged):
    assert (
        are_averaged([reduction(size, created_ns=5) for size in sizes], 36, since_ns=5) is averaged
    )


@pytest.mark.parametrize(
    ("name", "count", "elements"),
    [
        ("gloo:all_reduce", 36, 36),
        ("gloo:all_reduce", 2, 0),  # a loss and its count
        ("gloo:broadcast", 36, 0),
        ("gloo:send 0->1", 2, 2),
        ("nccl:all_to_all", 4, 4),
    ],
)
def test_what_ranks_exchange_for_a_step(name, count, elements):
    entries = [reduction(count, name=name, created_ns=when) for when in (4, 6)]
    assert exchanged(entries, since_ns=5) == elements


def test_only_reductions_since_the_last_backward_count():
    assert not are_averaged([reduction(36, created_ns=4)], 36, since_ns=5)
    assert not are_averaged([reduction(36, created_ns=6, name="gloo:broadcast")], 36, since_ns=5)


class Rank:
    def __init__(self, *, scale=1.0):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.gradients = LocalGradients(self.optimizer)
        self.scale = scale

    def backward(self):
        loss = (self.scale * self.net(torch.arange(15.0).reshape(5, 3))).square().mean()
        self.gradients.begin()
        loss.backward()
        self.gradients.end([loss])

    def digest(self):
        for _ in range(BACKWARDS):
            self.optimizer.zero_grad()
            self.backward()
            self.optimizer.step()
        elements = sum(each.numel() for each in self.net.parameters())
        return self.gradients.digest(lambda: [reduction(elements)])


def test_what_two_ranks_compute_alike_has_one_digest():
    assert Rank().digest() == Rank().digest() != 0


def test_what_they_compute_differently_has_two():
    assert Rank(scale=1.001).digest() not in (0, Rank().digest())


def test_other_parameters_have_another_digest():
    rank = Rank()
    with torch.no_grad():
        rank.net[2].bias.add_(1e-3)
    assert rank.digest() not in (0, Rank().digest())


def test_gradients_that_nobody_averages_show_nothing():
    rank = Rank()
    assert rank.digest() != 0
    assert rank.gradients.digest(list) == 0


def test_a_hook_of_the_users_may_average_so_nothing_is_shown():
    rank = Rank()
    rank.net[0].weight.register_hook(lambda gradient: gradient * 2)
    assert rank.digest() == 0


@pytest.mark.parametrize("broken", ["zero", "sparse"])
def test_gradients_with_too_little_to_tell_show_nothing(broken):
    rank = Rank(scale=0.0)
    if broken == "sparse":
        rank.net = nn.Embedding(5, 2, sparse=True)
        rank.optimizer = torch.optim.SGD(rank.net.parameters(), lr=0.1)
        rank.gradients = LocalGradients(rank.optimizer)
        rank.net.forward = lambda _, table=rank.net: nn.functional.embedding(
            torch.tensor([1, 2]), table.weight, sparse=True
        )
    assert rank.digest() == 0


def test_no_hook_is_left():
    rank = Rank()
    nodes = [torch.autograd.graph.get_gradient_edge(each).node for each in rank.net.parameters()]
    rank.digest()
    assert all(each._backward_hooks is None for each in rank.net.parameters())
    seen = len(rank.gradients._samples)
    rank.net(torch.ones(1, 3)).sum().backward()
    assert (len(rank.gradients._samples), len(nodes)) == (seen, 4)


def test_a_backward_that_fails_leaves_no_hook():
    rank = Rank()
    loss = rank.net(torch.ones(1, 3)).sum()
    loss.register_hook(lambda _: 1 / 0)
    rank.gradients.begin()
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    rank.gradients.end([loss])
    assert not rank.gradients.is_under_way
    assert rank.gradients.has_failed
