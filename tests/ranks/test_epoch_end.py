"""What a task logs after the last batch: the same number on any number of ranks, or words about it."""

import contextlib
import io

import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Module, Trainer

WORLDS = (1, 2, 3, 4)


def rows(length):
    x = torch.randn(length, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return TensorDataset(x, x.square().sum(1, keepdim=True))


class Recipe(Module):
    """Keeps what its steps come to and averages it at the end, as Lightning 2's migration guide says."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Linear(4, 1).double()
        self.training_step_outputs, self.losses, self.good = [], [], []
        self.error = torchmetrics.MeanAbsoluteError().set_dtype(torch.float64)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.training_step_outputs.append(loss.detach())
        return loss

    def on_train_epoch_start(self):
        self.log("rate", 0.1)

    def on_train_epoch_end(self):
        self.log("train_mean", torch.stack(self.training_step_outputs).mean())
        self.training_step_outputs.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        prediction = self.net(x)
        self.losses.append(nn.functional.mse_loss(prediction, y))
        self.good.append((prediction - y).abs() < 4)
        self.error.update(prediction, y)

    test_step = validation_step

    def on_validation_epoch_end(self):
        self.log("recipe", torch.stack(self.losses).mean())
        good = torch.cat(self.good)
        self.log("share", good.double().mean())
        self.log("count", good.sum())
        self.log("sum", good.sum(), reduce_fx="sum")
        self.log("epoch", self.current_epoch)
        self.log("error", self.error)
        self.losses.clear()
        self.good.clear()

    on_test_epoch_end = on_validation_epoch_end

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class BatchValues(Recipe):
    """Logs what a metric returns for each batch: the mean over parts is not the value over the whole."""

    def __init__(self):
        super().__init__()
        self.root = torchmetrics.MeanSquaredError(squared=False).set_dtype(torch.float64)
        self.both = torchmetrics.MetricCollection({"root": self.root, "error": self.error})

    def training_step(self, batch, batch_idx):
        values = self.both(self.net(batch[0]), batch[1])
        self.log_dict(values, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


def announced(folder):
    task, said = BatchValues(), io.StringIO()
    with contextlib.redirect_stderr(said):
        trainer = Trainer(run_dir=folder, max_epochs=2, enable_checkpointing=False)
        trainer.fit(task, DataLoader(rows(6), 4))
    lines = said.getvalue().splitlines()
    return [line for line in lines if "depend on the number of ranks" in line]


def test_a_metric_of_a_part_of_a_batch_is_announced(ranks, tmp_path):
    assert ranks.run(announced, str(tmp_path / "one"), world_size=1) == [[]]
    (line,), silent = ranks.run(announced, str(tmp_path / "two"), world_size=2)
    assert "self.log('root') gets the MeanSquaredError of each rank's part of the batch" in line
    assert silent == []


def logged(folder, train_length, val_length, batch_size, stage):
    """Return what is logged, by name, and what is printed."""
    task, said = Recipe(), io.StringIO()
    with contextlib.redirect_stderr(said):
        trainer = Trainer(
            run_dir=folder, max_epochs=1, enable_progress_bar=False, enable_checkpointing=False
        )
        loaders = (
            DataLoader(rows(train_length), batch_size),
            DataLoader(rows(val_length), batch_size),
        )
        if stage == "fit":
            trainer.fit(task, *loaders)
        else:
            getattr(trainer, stage)(task, loaders[1], verbose=False)
    return {name: value.item() for name, value in trainer.callback_metrics.items()}, said.getvalue()


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_recipe_gives_one_ranks_numbers_where_batches_divide(ranks, tmp_path, world_size):
    (alone,) = ranks.run(logged, str(tmp_path / "alone"), 24, 36, 12, "fit", world_size=1)
    for found, said in ranks.run(
        logged, str(tmp_path / "ranks"), 24, 36, 12, "fit", world_size=world_size
    ):
        for name in ("train_mean", "recipe", "share", "sum", "epoch", "error", "rate"):
            assert found[name] == pytest.approx(alone[0][name], abs=1e-12), name
        assert "same number" not in said
    assert alone[0]["rate"] == 0.1


@pytest.mark.parametrize("stage", ["validate", "test"])
@pytest.mark.parametrize("world_size", WORLDS)
def test_means_over_rows_are_exact_and_others_are_named(ranks, tmp_path, world_size, stage):
    ((alone, said_alone),) = ranks.run(
        logged, str(tmp_path / "alone"), 4, 7, 3, stage, world_size=1
    )
    results = ranks.run(logged, str(tmp_path / "ranks"), 4, 7, 3, stage, world_size=world_size)
    for found, _ in results:
        for name in ("share", "sum", "epoch", "error"):
            assert found[name] == pytest.approx(alone[name], abs=1e-12), name
    said = results[0][1]
    assert "recipe" not in said_alone
    assert ("recipe on ranks in order: " in said) == (world_size > 1), said
    assert found["recipe"] == alone["recipe"] or "recipe on ranks in order: " in said
    assert (
        found["count"] == alone["count"]
        or "count is a whole number" in said
        or "count was logged" in said
    )
    assert "epoch on ranks" not in said, "a number that all ranks share is nothing to talk about"
    assert [text for _, text in results[1:] if "on ranks in order" in text] == [], (
        "rank 0 speaks for all"
    )


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_rank_without_a_row_takes_part(ranks, tmp_path, world_size):
    """Nothing can be stacked there."""
    ((alone, _),) = ranks.run(logged, str(tmp_path / "alone"), 4, 1, 4, "validate", world_size=1)
    for found, _ in ranks.run(
        logged, str(tmp_path / "ranks"), 4, 1, 4, "validate", world_size=world_size
    ):
        assert found == pytest.approx(alone, abs=1e-12)
