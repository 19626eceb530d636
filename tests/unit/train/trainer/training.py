"""A small task and its data for tests of the Trainer in a world of one, and the surroundings that they need."""

import csv

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Module, Trainer, env

mse = nn.functional.mse_loss


@pytest.fixture(autouse=True, scope="module")
def first_optimizer():
    """Make one before any test: torch then sets an environment variable, which no test may."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])


@pytest.fixture(autouse=True)
def unlaunched(monkeypatch, tmp_path):
    """Take away what a launcher around the tests would have set, and train in a folder of its own."""
    for variable in env.variables():
        if variable.name not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_signals(monkeypatch):
    """Leave the test runner's signal handlers alone: a session that saves would take them."""
    monkeypatch.setattr("paceline.train.session.stopping.CleanStop.arm", lambda self: None)


def dataset(length=20):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True))


def loader(length=20, batch_size=4, **options):
    return DataLoader(dataset(length), batch_size=batch_size, **options)


class Task(Module):
    """A linear regression that remembers what it was called with."""

    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(5)
        self.net = nn.Linear(4, 1).double()
        self.seen = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen.append((self.current_epoch, batch_idx, self.global_step))
        loss = mse(self(x), y)
        self.log("train_loss", loss, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", mse(self(x), y))

    def test_step(self, batch):
        self.log_dict({"test_loss": mse(self(batch[0]), batch[1]), "rows": len(batch[0])})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Stops:
    """A callback that asks for the end at each batch."""

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        trainer.should_stop = True


def trainer(**options):
    return Trainer(
        **{"max_epochs": 2, "seed": 1, "run_dir": "run", "enable_progress_bar": False, **options}
    )


def rows(path="run/metrics.csv"):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def loss_of(task, length=20):
    """Return the loss of the whole dataset, where the task is."""
    x, y = (part.to(task.device) for part in dataset(length).tensors)
    return mse(task.net(x), y).item()


def weights(task):
    return [parameter.tolist() for parameter in task.parameters()]


def scripted(losses):
    """A task whose val_loss in each epoch is given."""

    class Scripted(Task):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", losses[self.current_epoch])

    return Scripted()


def starts_of_validations(kind):
    """Return a list, and a callback that notes there the step at which each validation starts."""
    starts = []
    return starts, kind(
        on_validation_start=lambda trainer, task: starts.append(trainer.global_step)
    )
