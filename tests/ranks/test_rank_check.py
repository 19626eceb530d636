"""Ranks of a session are compared; steps that would let them drift apart are refused, others left alone."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from paceline.errors import PacelineError
from paceline.text import terminal
from paceline.train.session import stopping
from ranks import parity

LENGTH, BATCH = 41, 5  # nine steps an epoch


def train(folder, change, epochs=2, world_size_of_script=0, **options):
    """Train; return the finding that ended it, what was said, and what the last line says."""
    said, say = [], terminal.say
    terminal.say = said.append
    try:
        session = parity.session_of(folder, **options)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model, optimizer = session.setup(model, optimizer)
        x = torch.randn(LENGTH, 4, dtype=torch.float64)
        loader = session.loader(TensorDataset(x, x.sum(1, keepdim=True)), BATCH, shuffle=True)
        act = CHANGES[change](session, session.unwrap(model), optimizer)
        for _ in session.epochs(epochs):
            for inputs, labels in loader:
                loss = nn.functional.mse_loss(model(inputs), labels)
                if act.backward(loss):
                    act.before_step()
                    optimizer.step()
                    act.after_step()
                    optimizer.zero_grad()
            act.after_epoch()
        parts = session._gradients.limits.parts
        proven = stopping.Proven(session._gradients.check, session._tracker.whole_epochs, parts)
        return None, said, stopping.describe(proven)
    except PacelineError as error:
        return error.finding.to_json(), said, ""
    finally:
        terminal.say = say


class Right:
    """A training in which nothing is wrong; what is wrong in others overrides a method."""

    def __init__(self, session, model, optimizer):
        self.session, self.model, self.optimizer = session, model, optimizer

    def backward(self, loss):
        return self.session.backward(loss)

    def before_step(self): ...
    def after_step(self): ...
    def after_epoch(self): ...


class Rate(Right):
    """A learning rate that one rank's validation has set, from the start or later."""

    since = 1

    def before_step(self):
        if self.session.step == self.since:
            self.optimizer.param_groups[0]["lr"] = 0.01 * (1 + self.session.rank)


class LaterRate(Rate):
    since = 5


class Loaded(Right):
    """Rank 1 changes its parameters alone."""

    def after_step(self):
        if self.session.step == 6 and self.session.rank == 1:
            with torch.no_grad():
                self.model[2].weight.mul_(1.01)


class State(Right):
    """Rank 1 loses its optimizer's state, and gets it back before the next step."""

    def after_step(self):
        if self.session.step == 3 and self.session.rank == 1:
            self.optimizer.state[self.model[0].bias]["exp_avg"].zero_()


class Saved(Loaded):
    """The difference is seen at a save, not only after a power of two."""

    def after_epoch(self):
        self.session.save(wait=True)


class Rounded(Right):
    """Each step is rounded differently on each rank, as on other processors."""

    def after_step(self):
        generator = torch.Generator().manual_seed(self.session.rank * 1000 + self.session.step)
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
                parameter.mul_(1 + noise * 2.2e-16)


class Twice(Right):
    """A second step on the same gradients, and one of a second optimizer."""

    def after_step(self):
        self.optimizer.step()
        torch.optim.SGD(self.model.parameters(), lr=1e-3).step()


class ByHand(Right):
    """Gradients of the script's own, averaged by the script."""

    def backward(self, loss):
        for parameter, gradient in zip(
            self.model.parameters(), torch.autograd.grad(loss, self.model.parameters()), strict=True
        ):
            parameter.grad = self.session.reduce(gradient) / self.session.world_size
        return True


class Apart(Right):
    """Each rank trains a plain copy of its own beside."""

    def __init__(self, *given):
        super().__init__(*given)
        self.twin = copy.deepcopy(self.model)
        self.own = torch.optim.SGD(self.twin.parameters(), lr=0.1)

    def after_step(self):
        self.twin(torch.ones(1, 4).double() * self.session.rank).sum().backward()
        self.own.step()


class Attack(Right):
    """A backward reaches inputs that a rank's own optimizer trains, through autograd.grad."""

    def backward(self, loss):
        inputs = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(self.model(inputs).sum(), inputs)
        return self.session.backward(loss + 0 * (inputs * gradient).sum())


CHANGES = {kind.__name__: kind for kind in (Right, *Right.__subclasses__(), LaterRate, Saved)}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("change", ["Right", "Rounded", "Twice", "ByHand", "Apart", "Attack"])
def test_right_trainings_agree_and_say_so(ranks, tmp_path, change, world_size):
    results = ranks.run(train, str(tmp_path / "run"), change, world_size=world_size)
    assert [finding for finding, _, _ in results] == [None] * world_size
    _, said, line = results[0]
    assert [text for text in said if "differ" in text] == []
    checks = "" if change == "ByHand" else "ranks agree (5 checks to step 16) · "
    epochs = "" if change == "ByHand" else " · every sample once (2 epochs of 41)"
    assert line == f"result: {checks}loss not proven (paceline run --prove){epochs}"


@pytest.mark.parametrize(
    ("change", "what"),
    [("Rate", "after step 1 rank 1 has another lr of AdamW than rank 0")],
)
def test_a_session_ends_while_nothing_is_lost(ranks, tmp_path, change, what):
    for finding, _, _ in ranks.run(train, str(tmp_path / "run"), change, world_size=2):
        assert (finding["name"], finding["severity"], finding["what"]) == (
            *("replicas-differ", "error"),
            what,
        )
        assert finding["evidence"][0] == "lr of AdamW: 0.01 on rank 0, 0.02 on rank 1"
        assert "Session(check_ranks=False)" in finding["fix"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("LaterRate", "after step 8 rank 1 has another lr of AdamW than rank 0"),
        ("Loaded", "after step 8 rank 1 has other parameters than rank 0, first in 2.weight"),
        ("State", "after step 4 rank 1 has other parameters than rank 0, first in 0.bias"),
        ("Saved", "after step 8 rank 1 has other parameters than rank 0, first in 2.weight"),
    ],
)
def test_a_later_difference_is_reported_once_and_the_run_continues(ranks, tmp_path, change, what):
    results = ranks.run(train, str(tmp_path / "run"), change, world_size=2)
    assert [finding for finding, _, _ in results] == [None, None]
    (text,) = [text for text in results[0][1] if "replicas-differ" in text]
    assert text.startswith(f"warning RUN024 replicas-differ: {what}")
    assert results[0][2].startswith("not the same result: ranks differ (")
    assert [text for text in results[1][1] if "replicas-differ" in text] == []


def test_the_comparison_can_be_switched_off(ranks, tmp_path):
    results = ranks.run(switched_off, str(tmp_path / "run"), world_size=2)
    assert [finding for finding, _, _ in results] == [None, None]
    assert results[0][2].endswith("· every sample once (2 epochs of 41)")


def switched_off(folder):
    return train(folder, "Rate", check_ranks=False)


def own_parallel_model(folder):
    """A script that wraps its model in torch's DDP itself needs no setup."""
    session = parity.session_of(folder)
    model = DistributedDataParallel(nn.Linear(4, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        session.backward(model(torch.ones(2, 4).double() * dist.get_rank()).mean())
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.tolist() for parameter in model.parameters()]


def test_a_model_that_the_script_has_wrapped_is_left_alone(ranks, tmp_path):
    first, second = ranks.run(own_parallel_model, str(tmp_path / "run"), world_size=2)
    assert first == second
