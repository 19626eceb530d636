"""The moving average of a model is the same on any number of ranks, also after a resume."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import FSDP, Session
from paceline.errors import UsageError


def rows():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(13, 6, generator=generator, dtype=torch.float64))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 1)).double()


def train(folder, num_epochs, made):
    session = Session(seed=0, run_dir=folder)
    model = net()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    loader = session.loader(rows(), 5, shuffle=True)
    if made == "late":
        session.restore("latest")
    average = session.average(model, decay=0.8)
    session.restore("latest")
    for _ in session.epochs(num_epochs):
        for (x,) in loader:
            if session.backward(model(x).square().mean()):
                optimizer.step()
                optimizer.zero_grad()
        session.save(wait=True)
    by_hand = [weight.tolist() for weight in average.parameters()]
    return by_hand, int(average.n_averaged), [weight.tolist() for weight in model.parameters()]


def far(first, second):
    pairs = zip(first, second, strict=True)
    return max(float((torch.tensor(a) - torch.tensor(b)).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("world_size", [2, 3])
def test_any_number_of_ranks_has_the_same_average(ranks, tmp_path, world_size):
    ((alone, steps, weights),) = ranks.run(train, str(tmp_path / "1"), 2, "early", world_size=1)
    assert steps == 6
    assert far(alone, weights) > 1e-3
    results = ranks.run(train, str(tmp_path / "n"), 2, "early", world_size=world_size)
    assert results == [results[0]] * world_size
    assert results[0][1] == steps
    assert far(results[0][0], alone) < 1e-10


@pytest.mark.parametrize("made", ["early", "late"])
def test_a_resumed_average_continues(ranks, tmp_path, made):
    ((alone, steps, _),) = ranks.run(train, str(tmp_path / "whole"), 3, "early", world_size=1)
    ranks.run(train, str(tmp_path / "parts"), 1, "early", world_size=2)
    ((resumed, num_resumed, _),) = ranks.run(train, str(tmp_path / "parts"), 3, made, world_size=1)
    assert (far(resumed, alone) < 1e-10, num_resumed) == (True, steps)


def by_formula():
    """Return the average that torch keeps, and the one that is computed by hand."""
    session = Session(seed=0)
    model = nn.Linear(6, 1).double()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    average, expected = session.average(model, decay=0.9), None
    for (x,) in session.loader(rows(), 5):
        session.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        weight = session.unwrap(model).weight.detach().clone()
        expected = weight if expected is None else 0.9 * expected + 0.1 * weight
    return far([average.module.weight.tolist()], [expected.tolist()]), average.training


def test_each_step_updates_it_once(ranks):
    ((distance, is_training),) = ranks.run(by_formula, world_size=1)
    assert distance < 1e-12
    assert not is_training


def refusals(strategy):
    strategies = {"fsdp": FSDP(), "ddp": "ddp"}
    session = Session(strategy=strategies[strategy])
    model = nn.Linear(6, 1)
    model, _ = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = session.setup(nn.Linear(6, 1))
    return [
        name_of(lambda: session.average(model, decay=0.9)),
        name_of(lambda: session.average(model, decay=1.0)),
        name_of(lambda: session.average(nn.Linear(6, 1), decay=0.9)),
        name_of(lambda: session.average(other, decay=0.9)),
    ]


def name_of(function):
    try:
        function()
    except UsageError as error:
        return error.finding.name
    return ""


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("ddp", ["", "option-invalid", "option-invalid", "option-contradicted"]),
        ("fsdp", ["option-contradicted"] * 2 + ["option-invalid", "option-contradicted"]),
    ],
)
def test_what_cannot_be_averaged_is_refused(ranks, strategy, expected):
    assert ranks.run(refusals, strategy, world_size=2) == [expected] * 2
