"""What the probe counts and how it divides the time, with a clock that a test moves."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from paceline import counters
from paceline.launch.probe import probe


@pytest.fixture
def clock(monkeypatch):
    """A clock in nanoseconds that stands still until a test moves it."""
    time = [1_000]
    monkeypatch.setattr(probe, "monotonic_ns", lambda: time[0])
    return time


@pytest.fixture
def slot(clock):
    slot = memoryview(bytearray(counters.SLOT_BYTES)).cast("q")
    uninstall = probe.install(slot)
    yield slot
    uninstall()


class Slow(torch.autograd.Function):
    """A function whose backward takes a number of nanoseconds."""

    @staticmethod
    def forward(ctx, x, clock, duration):
        ctx.clock, ctx.duration = clock, duration
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock[0] += ctx.duration
        return grad, None, None


def train(num_steps, clock, forward):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(num_steps):
        loss = forward(weight).sum()
        clock[0] += 7
        loss.backward()
        clock[0] += 5
        optimizer.step()


def test_time_in_backward_is_apart(slot, clock):
    train(4, clock, lambda weight: Slow.apply(weight, clock, 100))
    assert slot[counters.STEPS] == 4
    assert slot[counters.LAST_STEP_NS] - slot[counters.FIRST_STEP_NS] == 3 * 112
    assert slot[counters.BACKWARD_NS] == 3 * 100


def test_a_backward_within_a_backward_counts_once(slot, clock):
    def forward(weight):
        return checkpoint(lambda x: Slow.apply(x, clock, 100), weight, use_reentrant=True)

    train(4, clock, forward)
    assert slot[counters.LAST_STEP_NS] - slot[counters.FIRST_STEP_NS] == 3 * 112
    assert slot[counters.BACKWARD_NS] == 3 * 100


def test_two_backwards_of_a_step_are_added(slot, clock):
    def forward(weight):
        Slow.apply(weight, clock, 40).sum().backward()
        return Slow.apply(weight, clock, 100)

    train(4, clock, forward)
    assert slot[counters.BACKWARD_NS] == 3 * 140


def test_arguments_of_backward_arrive(slot):
    """By position and by name, and also one that torch does not have yet."""
    calls = []
    _, backward, _ = probe._count(
        *(slot, probe.Loops(slot), SimpleNamespace(due=-1)),
        lambda *args, **kwargs: calls.append((args, kwargs)),
        iter,
    )
    backward("loss", None, True, inputs="weights")
    backward("loss", later="word")
    assert calls == [
        (("loss", None, True, False, None, "weights"), {}),
        (("loss", None, None, False, None, None), {"later": "word"}),
    ]


def test_torch_has_the_parameters_that_are_passed_on():
    names = list(inspect.signature(torch.autograd.backward).parameters)
    expected = ["tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables"]
    assert names == [*expected, "inputs"]
