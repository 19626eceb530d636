"""Which samples a rank trains on and holds out, and whether reading an evaluation draws random numbers."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from paceline import counters
from paceline.launch.probe import probe
from paceline.launch.probe.splits import Splits

DATA = TensorDataset(torch.arange(400.0).reshape(100, 4))


class Wrapped(Dataset):
    def __init__(self, held, change=lambda sample: sample):
        self.held, self.change = held, change

    def __len__(self):
        return len(self.held)

    def __getitem__(self, index):
        return self.change(self.held[index])


@pytest.fixture
def board():
    return counters.SharedCounters(counters.create(1), 1)


@pytest.mark.parametrize(
    ("train", "held_out", "known"),
    [
        (Subset(DATA, range(90)), Subset(DATA, range(90, 100)), (90, 10)),
        (Subset(DATA, torch.arange(90)), Wrapped(Subset(DATA, [95, 96])), (90, 2)),
        (Subset(Subset(DATA, range(50, 100)), [0, 49]), Subset(DATA, [50, 99]), (2, 0)),
        (Subset(DATA, range(90)), TensorDataset(torch.rand(100, 4)), (90, 0)),
        (Subset(Wrapped([f"{name}.png" for name in range(9)]), [1, 2]), DATA, (2, 0)),
        (Subset(Wrapped(range(100)), range(90)), DATA, None),  # nothing of its samples is known
    ],
)
def test_subsets_are_traced_to_their_dataset(board, train, held_out, known):
    splits = Splits(board.slot(0))
    splits.train(train, None)
    splits.evaluate(held_out)
    split = board.read_split(0)
    assert (split.identity != 0) is (known is not None)
    if known:
        assert (split.trained.bit_count(), split.held_out.bit_count()) == known


def flipped(sample):
    return sample[0].flip(0) if random.random() < 0.5 else sample[0]


def drawing(samples):
    return torch.rand(1), samples


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("held_out", "options", "draws"),
    [
        (Wrapped(DATA, flipped), {}, True),
        (Wrapped(DATA), {"shuffle": True, "collate_fn": drawing}, False),
        ("train", {}, False),
    ],
    ids=["a transform", "sampler and collate_fn", "what is trained on, as for batch norm"],
)
def test_an_evaluation_whose_samples_draw(board, held_out, options, draws, workers):
    train = Wrapped(DATA, flipped)
    uninstall = probe.install(board.slot(0))
    try:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for batch in DataLoader(train, 50):
            model(batch).sum().backward()
            optimizer.step()
        with torch.no_grad():
            loader = DataLoader(
                train if held_out == "train" else held_out, 50, num_workers=workers, **options
            )
            assert len(list(loader)) == 2
    finally:
        uninstall()
    assert bool(board.slot(0)[counters.EVALUATION_DRAWS]) is draws
