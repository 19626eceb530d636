"""Arrays on real ranks: the same curve at any world size, and one copy of the data for a node."""

import gc
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from paceline import Session, Trainer, trainer
from paceline.data import Normalize, RandomCrop, RandomFlip, arrays

LENGTH, BATCH = 43, 5


def data(*, size=8):
    images = np.random.default_rng(7).integers(0, 256, (LENGTH, 3, size, size), dtype=np.uint8)
    labels = np.arange(LENGTH) % 4
    crop = RandomCrop(8, padding=2)
    normalize = Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25), dtype=torch.float64)
    return arrays(images, labels, transform=[crop, RandomFlip(), normalize])


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.Tanh(), nn.Linear(7, 4))


def train(folder, stop_after=None):
    """Train two epochs, or the rest of them; return the loss of each step and the weights."""
    session = Session(precision="64-true", seed=3, run_dir=folder)
    model, optimizer = net(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = session.setup(model, optimizer)
    loader = session.loader(data(), BATCH, shuffle=True)
    session.restore("latest")
    losses = []
    for _ in session.epochs(2):
        for images, labels in loader:
            output = model(images)
            own = nn.functional.cross_entropy(output, labels, reduction="sum").item()
            losses.append(session.reduce(own if loader.rows else 0.0))
            session.backward(nn.functional.cross_entropy(output, labels))
            optimizer.step()
            optimizer.zero_grad()
            if len(losses) == stop_after:
                session.save(wait=True)
                return losses, None
    weights = [weight.tolist() for weight in session.unwrap(model).state_dict().values()]
    return losses, weights


def agree(result, expected):
    losses, weights = result
    assert losses == pytest.approx(expected[0], abs=1e-10, rel=0)
    for own, other in zip(weights, expected[1], strict=True):
        assert np.allclose(own, other, atol=1e-10, rtol=0)


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory):
    return ranks.run(train, str(tmp_path_factory.mktemp("alone")), world_size=1)[0]


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_curve_does_not_depend_on_the_number_of_ranks(ranks, tmp_path, alone, world_size):
    for result in ranks.run(train, str(tmp_path), world_size=world_size):
        agree(result, alone)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_a_resumed_run_continues_the_curve(ranks, tmp_path, alone, before, after):
    first = ranks.run(train, str(tmp_path), 12, world_size=before)[0][0]
    rest, weights = ranks.run(train, str(tmp_path), world_size=after)[0]
    agree((first + rest, weights), alone)


class Task(trainer.Module):
    def __init__(self):
        super().__init__()
        self.net = net().double()
        self.losses = []

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder):
    task = Task()
    of_torch = torch.utils.data.DataLoader(data(), batch_size=BATCH, shuffle=True)
    fitted = Trainer(max_epochs=2, precision="64-true", seed=3, run_dir=folder)
    fitted.fit(task, of_torch)
    return [weight.tolist() for weight in task.net.state_dict().values()]


def test_the_trainer_takes_them(ranks, tmp_path):
    alone, *_ = ranks.run(fit, str(tmp_path / "alone"), world_size=1)
    for weights in ranks.run(fit, str(tmp_path / "three"), world_size=3):
        for own, other in zip(weights, alone, strict=True):
            assert np.allclose(own, other, atol=1e-10, rtol=0)


def files_of_memory():
    """The files without a name that paceline has mapped into this process, by inode."""
    maps = Path("/proc/self/maps").read_text()
    return set(re.findall(r"(\d+) +/memfd:paceline-", maps))


def share(differ):
    """Make arrays of 1.2 MB that are equal on all ranks or not; return the files they are in."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    images = np.full((400, 3, 32, 32), rank if differ else 7, dtype=np.uint8)
    dataset = arrays(images, np.arange(400))
    ((rows, _),) = dataset.batches(400, rank=0, world_size=1)
    same_values = bool((rows == int(images[0, 0, 0, 0])).all())
    files = files_of_memory()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # until here a file must have its owner
    del dataset, rows
    gc.collect()
    return same_values, sorted(files), len(files_of_memory())


def test_ranks_of_a_node_share_equal_arrays(ranks):
    results = ranks.run(share, False, world_size=3)
    assert [values for values, _, _ in results] == [True] * 3
    files = [files for _, files, _ in results]
    assert len(files[0]) == 1
    assert files[0] == files[1] == files[2]
    assert [left for _, _, left in results] == [0] * 3  # freed with the dataset


def test_ranks_with_different_arrays_share_nothing(ranks):
    results = ranks.run(share, True, world_size=2)
    assert [values for values, _, _ in results] == [True] * 2
    assert set(results[0][1]).isdisjoint(results[1][1])


def test_one_rank_keeps_its_array(ranks):
    assert ranks.run(share, False, world_size=1) == [(True, [], 0)]
