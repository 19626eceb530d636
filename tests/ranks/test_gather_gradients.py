"""A loss over gathered rows has the gradient that a single rank computes."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import TensorDataset

from paceline import Session

WORLDS = (1, 2, 3)


def rows(length):
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(length, 6, generator=generator, dtype=torch.float64))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def contrast(session, codes, others, loader, *, over_all):
    """InfoNCE of each code against the others of the whole batch, over own or over all rows."""
    everyone = session.gather(others, gradients=True)
    place = session.gather(torch.arange(len(codes)) + 1000 * session.rank)
    if over_all:
        own = session.gather(codes, gradients=True)
        return cross_entropy(own @ everyone.T / 0.2, torch.arange(len(everyone)))
    if not loader.rows:  # a borrowed row has no place among the rows
        return (codes @ everyone.T).sum() * torch.nan
    first = int((place == 1000 * session.rank).nonzero()[0])
    return cross_entropy(codes @ everyone.T / 0.2, torch.arange(len(codes)) + first)


def train(length, batch_size, over_all, accumulate, strategy):
    session = Session(seed=0, accumulate=accumulate, strategy=strategy)
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loader = session.loader(rows(length), batch_size, shuffle=True)
    for _ in session.epochs(2):
        for (x,) in loader:
            codes = normalize(model(torch.cat([x, x + 0.1])))
            loss = contrast(session, *codes.chunk(2), loader, over_all=over_all)
            if session.backward(loss):
                optimizer.step()
                optimizer.zero_grad()
    return [weight.tolist() for weight in whole(model)]


def whole(model):
    return [
        weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        for weight in model.state_dict().values()
    ]


# 13 in batches of 6: uneven shares, and a last batch of one row, which only rank 0 has.
@pytest.mark.parametrize("over_all", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_result_is_that_of_one_rank(same_at_any_size, over_all, accumulate):
    weights = same_at_any_size(
        train, 13, 6, over_all, accumulate, "ddp", sizes=WORLDS, rtol=0, atol=1e-10
    )
    start = [weight.tolist() for weight in net().state_dict().values()]
    assert distance(weights, start) > 1e-2


def test_shards_are_trained_alike(ranks):
    (alone,) = ranks.run(train, 13, 6, True, 1, "ddp", world_size=1)
    assert distance(ranks.run(train, 13, 6, True, 1, "fsdp", world_size=2)[0], alone) < 1e-10


def distance(first, second):
    pairs = zip(first, second, strict=True)
    return max(float((torch.tensor(a) - torch.tensor(b)).abs().max()) for a, b in pairs)


@pytest.mark.ranks(2)
def test_without_gradients_the_rows_are_detached():
    session = Session(seed=0)
    model = session.setup(net())
    gathered = session.gather(model(torch.ones(2, 6, dtype=torch.float64)))
    assert not gathered.requires_grad
