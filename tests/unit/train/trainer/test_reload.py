"""Loaders that are made again every few epochs."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline import DataModule, Session
from paceline.errors import UsageError
from paceline.trainer import CombinedLoader
from unit.train.trainer.training import (  # noqa: F401  the fixtures are used by being here
    Task,
    dataset,
    finding,
    first_optimizer,
    loader,
    no_signals,
    trainer,
    unlaunched,
    weights,
)


class Growing(DataModule):
    """More data in later epochs, of which a random part is drawn each time."""

    def __init__(self):
        super().__init__()
        self.made, self.drawn = [], []

    def _loader(self, stage, **options):
        epoch = self.trainer.current_epoch
        self.made.append((stage, epoch))
        whole = dataset(12 + 8 * epoch)
        return DataLoader(TensorDataset(*whole.tensors), 4, **options)

    def train_dataloader(self):
        self.drawn.append(torch.rand(()).item())
        return self._loader("train", shuffle=True)

    def val_dataloader(self):
        return self._loader("val")


class Seen(Task):
    """Remembers its samples, and may end behind a checkpoint."""

    cut_at = None

    def __init__(self):
        super().__init__()
        self.samples = {}

    def training_step(self, batch, batch_idx):
        self.samples.setdefault(self.current_epoch, []).extend(batch[0][:, 0].tolist())
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (self.current_epoch, batch_idx) == self.cut_at:
            self.trainer.session.save(wait=True)
            raise KeyboardInterrupt


def fit(task=None, data=None, **options):
    task, data = task or Seen(), data or Growing()
    made = trainer(**{"max_epochs": 5, "reload_dataloaders_every_n_epochs": 2, **options})
    made.fit(task, data)
    return task, data, made


def test_they_are_made_again_and_each_epoch_has_its_order():
    task, data, made = fit()
    both = ("train", "val")
    assert data.made == [(stage, epoch) for epoch in (0, 2, 4) for stage in both]
    assert [len(samples) for samples in task.samples.values()] == [12, 12, 28, 28, 44]
    for epoch, length in ((0, 12), (1, 12), (2, 28), (3, 28)):
        assert sorted(task.samples[epoch]) == sorted(dataset(length).tensors[0][:, 0].tolist())
    assert task.samples[2] != task.samples[3], "each epoch has an order of its own"
    assert made.num_training_batches == 11
    assert made.num_val_batches == [11]


def test_without_a_change_of_the_data_nothing_is_different():
    class Same(DataModule):
        def train_dataloader(self):
            return loader(shuffle=True)

    ours, _, _ = fit(data=Same())
    theirs, _, _ = fit(data=Same(), reload_dataloaders_every_n_epochs=0, run_dir="other")
    assert weights(ours) == weights(theirs)
    assert ours.samples == theirs.samples


@pytest.mark.parametrize("cut_at", [(1, 1), (2, 0), (3, 4)])
def test_a_resumed_epoch_has_the_rest_of_its_samples(cut_at):
    expected, _, _ = fit(run_dir="whole")
    cut = Seen()
    cut.cut_at = cut_at
    with pytest.raises(KeyboardInterrupt):
        fit(cut)
    resumed, data, _ = fit(resume=True)
    epoch, _ = cut_at
    assert cut.samples[epoch] + resumed.samples[epoch] == expected.samples[epoch]
    assert resumed.samples[4] == expected.samples[4]
    assert weights(resumed) == weights(expected)
    made_for = epoch - epoch % 2
    assert (("train", made_for) in data.made) and (("train", 1) not in data.made)


def test_what_it_draws_at_random_is_the_same_in_a_resumed_run():
    _, whole, _ = fit(run_dir="whole")
    cut = Seen()
    cut.cut_at = (3, 4)
    with pytest.raises(KeyboardInterrupt):
        fit(cut)
    _, resumed, _ = fit(resume=True)
    assert resumed.drawn[1:] == whole.drawn[1:]


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "sequential"])
def test_several_loaders(mode):
    class Two(DataModule):
        def train_dataloader(self):
            second = loader(8 if self.trainer.current_epoch else 4)
            return CombinedLoader([loader(12), second], mode)

    class Counts(Task):
        def training_step(self, batch, batch_idx, dataloader_idx=0):
            parts = batch if mode != "sequential" else [batch]
            self.seen.append(self.current_epoch)
            return sum((self(x) - y).square().mean() for x, y in parts)

    task, _, _ = fit(Counts(), Two(), max_epochs=2, reload_dataloaders_every_n_epochs=1)
    batches = [task.seen.count(epoch) for epoch in (0, 1)]
    assert batches == {"max_size_cycle": [3, 3], "min_size": [1, 2], "sequential": [4, 5]}[mode]


def test_loaders_that_were_passed_are_refused():
    with pytest.raises(UsageError) as caught:
        trainer(reload_dataloaders_every_n_epochs=1).fit(Task(), loader())
    assert finding(caught).name == "option-contradicted"
    assert "loaders were passed" in finding(caught).what
    with pytest.raises(UsageError, match="reload_dataloaders_every_n_epochs=-1"):
        trainer(reload_dataloaders_every_n_epochs=-1)


def test_another_number_of_loaders_is_refused():
    class More(DataModule):
        def train_dataloader(self):
            return [loader() for _ in range(2 + self.trainer.current_epoch)]

    class First(Task):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch[0], batch_idx)

    with pytest.raises(UsageError, match="returned 3 loaders, and 2 before"):
        fit(First(), More(), reload_dataloaders_every_n_epochs=1, enable_checkpointing=False)


def session_and_loader(length=12):
    session = Session(run_dir="run", loggers=(), seed=1)
    model = torch.nn.Linear(4, 1).double()
    model, _ = session.setup(model, torch.optim.SGD(model.parameters(), 0.01))
    return session, model, session.loader(dataset(length), 4, shuffle=True)


def test_a_session_replaces_a_loader_and_continues_with_its_epochs():
    session, model, train = session_and_loader()
    orders = []
    for epoch in session.epochs(3):
        if epoch:
            train = session.loader(dataset(12), 4, shuffle=True, instead_of=train)
        orders.append([])
        for x, y in train:
            orders[-1] += x[:, 0].tolist()
            session.backward((model(x) - y).square().mean())
    session, model, train = session_and_loader()
    for epoch in session.epochs(3):
        assert [each for x, _ in train for each in x[:, 0].tolist()] == orders[epoch]


def test_a_loader_is_replaced_between_its_loops():
    session, _, train = session_and_loader()
    for _ in train:
        with pytest.raises(UsageError, match="has not ended"):
            session.loader(dataset(12), 4, instead_of=train)
    other, _, _ = session_and_loader()
    with pytest.raises(UsageError, match="instead_of is not a loader"):
        other.loader(dataset(12), 4, instead_of=train)
