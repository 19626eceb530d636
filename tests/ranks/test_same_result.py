"""The promise: the number of ranks, and where a run was stopped, do not show in the curve."""

import itertools
import random

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import Session
from ranks.parity import BATCH, LENGTH, net, weights_of

SEVERAL = (2, 3, 4)


def data(length):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(length, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.square().mean(1, keepdim=True), torch.arange(length))


def train(folder, options=None, size=(LENGTH, BATCH), stop_after=None):
    """Train, or go on; return the loss and the ids of each step, and the weights.

    ``stop_after`` is a number of batches, after which a checkpoint is saved, also inside of a group.
    """
    session = Session(precision="64-true", seed=3, run_dir=folder, **(options or {}))
    torch.manual_seed(5)
    model = net(width=6)
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    loader = session.loader(data(size[0]), size[1], shuffle=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
    session.register(schedule=schedule)
    session.restore("latest")
    steps, num_batches = [], 0
    total, ids = 0.0, []
    for epoch in session.epochs(2):
        for x, y, index in loader:
            prediction = model(x)
            if loader.rows:  # else it is another rank's, which only the gradient leaves out
                total += nn.functional.mse_loss(prediction, y, reduction="sum").item()
            ids += session.gather(index).tolist()
            if session.backward(nn.functional.mse_loss(prediction, y)):
                loss, rate = session.reduce(total) / len(ids), schedule.get_last_lr()[0]
                steps.append((session.step, epoch, rate, loss, ids))
                total, ids = 0.0, []
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            num_batches += 1
            if num_batches == stop_after:
                session.save(wait=True)
                return steps, None
    return steps, weights_of(session.unwrap(model))


def agree(found, expected, tolerance):
    assert [step[:3] for step in found] == [step[:3] for step in expected]
    assert [step[4] for step in found] == [step[4] for step in expected], "samples, in order"
    losses = [step[3] for step in expected]
    assert [step[3] for step in found] == pytest.approx(losses, abs=tolerance, rel=0)


def near(weights, expected, tolerance):
    for name, values in expected.items():
        assert torch.tensor(weights[name]).sub(torch.tensor(values)).abs().max() < tolerance


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory):
    """What one rank gives, for each number of accumulated batches."""
    return {
        accumulate: ranks.run(
            train, str(tmp_path_factory.mktemp("alone")), {"accumulate": accumulate}, world_size=1
        )[0]
        for accumulate in (1, 3)
    }


def test_a_step_sees_each_sample_once(alone):
    for accumulate, (steps, _) in alone.items():
        assert len(steps) == 2 * -(-9 // accumulate)
        for epoch in range(2):
            seen = [ids for step in steps if step[1] == epoch for ids in step[4]]
            assert sorted(seen) == list(range(LENGTH))


@pytest.mark.parametrize("world_size", SEVERAL)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_curve_does_not_show_the_number_of_ranks(
    ranks, alone, tmp_path, accumulate, world_size
):
    expected, weights = alone[accumulate]
    results = ranks.run(train, str(tmp_path), {"accumulate": accumulate}, world_size=world_size)
    for found, theirs in results:
        agree(found, expected, 1e-10)
        near(theirs, weights, 1e-10)
        assert theirs == results[0][1], "ranks must not drift apart by one bit"


# 41 = 5 * 8 + 1: only rank 0 has a row of the last batch. With 13 in batches of 3, a share of each batch is empty on
# four ranks.
@pytest.mark.parametrize("size", [(41, 8), (13, 3), (5, 7)])
def test_shares_without_rows_do_not_show(ranks, tmp_path, size):
    places = {world_size: str(tmp_path / str(world_size)) for world_size in (1, *SEVERAL)}
    ((expected, weights),) = ranks.run(train, places[1], {}, size, world_size=1)
    for world_size in SEVERAL:
        for found, theirs in ranks.run(train, places[world_size], {}, size, world_size=world_size):
            agree(found, expected, 1e-10)
            near(theirs, weights, 1e-10)


def train_unweighted(folder):
    def plain(session, loss):
        with session._gradients._outside:  # else it would be refused
            loss.nan_to_num(0.0).backward()
        return True

    original, Session.backward = Session.backward, plain
    try:
        return train(folder)
    finally:
        Session.backward = original


def test_unweighted_shares_would_fail_these_tests(ranks, alone, tmp_path):
    """The tolerance is not so wide that a plain mean over ranks gets through."""
    (plain, _), _ = ranks.run(train_unweighted, str(tmp_path), world_size=2)
    pairs = zip(alone[1][0], plain, strict=True)
    assert max(abs(one[3] - other[3]) for one, other in pairs) > 1e-4


@pytest.mark.parametrize("accumulate", [1, 3])
def test_fsdp_agrees_with_ddp(ranks, alone, tmp_path, accumulate):
    expected, weights = alone[accumulate]
    for found, theirs in ranks.run(
        train, str(tmp_path), {"accumulate": accumulate, "strategy": "fsdp"}, world_size=3
    ):
        agree(found, expected, 1e-8)
        near(theirs, weights, 1e-8)


# First some ranks, then other ones, then others again; with ddp and fsdp, in either direction.
JOURNEYS = [
    ((1, "ddp"), (4, "ddp"), (2, "ddp")),
    ((3, "ddp"), (1, "ddp"), (2, "ddp")),
    ((2, "fsdp"), (3, "ddp"), (2, "fsdp")),
    ((2, "ddp"), (4, "fsdp"), (3, "ddp")),
]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("journey", JOURNEYS, ids=str)
def test_the_curve_does_not_show_where_it_was_stopped(ranks, alone, tmp_path, accumulate, journey):
    expected, weights = alone[accumulate]
    first, second = sorted(random.Random(str(journey) + str(accumulate)).sample(range(1, 17), 2))
    steps = []
    for (world_size, strategy), stop_after in zip(
        journey, (first, max(1, second - first), None), strict=True
    ):
        options = {"accumulate": accumulate, "strategy": strategy}
        found, theirs = ranks.run(
            train, str(tmp_path), options, (LENGTH, BATCH), stop_after, world_size=world_size
        )[0]
        assert stop_after is None or found or accumulate > stop_after or steps, "it got on"
        steps += found
    agree(steps, expected, 1e-8 if "fsdp" in str(journey) else 1e-10)
    near(theirs, weights, 1e-8)


def test_ids_are_told_apart(alone):
    """The comparison of ids can fail: the epochs differ."""
    steps, _ = alone[1]
    halves = [[step[4] for step in steps if step[1] == epoch] for epoch in range(2)]
    assert halves[0] != halves[1]
    assert sorted(itertools.chain(*halves[0])) == sorted(itertools.chain(*halves[1]))
