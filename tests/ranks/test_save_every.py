"""Checkpoints are saved inside a loop over training data, every n steps or minutes."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import Session
from paceline.errors import UsageError


def begin(folder):
    session = Session(seed=0, run_dir=folder)
    torch.manual_seed(0)
    model = nn.Linear(6, 1).double()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(13, 6, generator=generator, dtype=torch.float64))
    return session, model, optimizer, session.loader(data, 1, shuffle=True)


def step(session, model, optimizer, x):
    session.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def saved_steps(session):
    session._checkpoints.wait()
    session.barrier()
    names = [path.name for path in session.run_dir.checkpoints.glob("0*")]
    return sorted(int(name.rpartition("-")[2]) for name in names)


def by_steps(folder, last, keep_last):
    """Train until step ``last``; return the steps of the checkpoints, and the weights."""
    session, model, optimizer, loader = begin(folder)
    session.save_every(steps=4, keep_last=keep_last)
    session.restore("latest")
    for _ in session.epochs(1):
        for (x,) in loader:
            step(session, model, optimizer, x)
            if session.step == last:
                break
        if session.step == last:
            break
    return saved_steps(session), session.unwrap(model).weight.tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_n_steps(ranks, tmp_path, world_size):
    results = ranks.run(by_steps, str(tmp_path / "one"), 11, 9, world_size=world_size)
    assert [steps for steps, _ in results] == [[4, 8]] * world_size
    whole = ranks.run(by_steps, str(tmp_path / "two"), 0, 1, world_size=world_size)[0]
    assert whole[0] == [12]
    resumed = ranks.run(by_steps, str(tmp_path / "one"), 0, 1, world_size=2)[0]
    assert resumed[0] == [12]
    difference = torch.tensor(resumed[1]) - torch.tensor(whole[1])
    assert difference.abs().max() < 1e-10


def by_minutes(folder):
    """Return the steps of the checkpoints; rank 0's clock alone passes two minutes after step 5."""
    session, model, optimizer, loader = begin(folder)
    periodic, seconds = session._progress._periodic, [0.0]
    periodic._clock = lambda: seconds[0]
    session.save_every(minutes=2, keep_last=9)
    session._progress.stop._until = 1
    for (x,) in loader:
        step(session, model, optimizer, x)
        session._progress.stop._until = 1  # ranks meet at each boundary
        if session.step == 5 and session.is_main:
            seconds[0] = 121.0
    return saved_steps(session)


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_n_minutes_on_all_ranks(ranks, tmp_path, world_size):
    results = ranks.run(by_minutes, str(tmp_path), world_size=world_size)
    assert results == [[5]] * world_size


def refused(options):
    session = Session()
    with pytest.raises(UsageError) as raised:
        session.save_every(**options)
    return raised.value.finding.name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 0},
        {"steps": 2.5},
        {"minutes": 0},
        {"minutes": "9"},
        {"steps": 9, "keep_last": 0},
    ],
)
def test_bad_values_are_refused(ranks, options):
    assert ranks.run(refused, options, world_size=1) == ["option-invalid"]
