"""What the Trainer logs and shows, and the data and hyperparameters that it works with."""

import io
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader, random_split

import paceline
from paceline import DataModule, Module
from paceline.errors import UsageError
from paceline.train.trainer.meters import found_at, place_of
from paceline.train.trainer.progress import Display, as_text, clock
from unit.train.trainer.training import Task, dataset, loader, rows, trainer

# What is logged


def test_means_are_over_rows():
    class Rows(Task):
        def training_step(self, batch, batch_idx):
            self.log("mean", batch[0].mean(), on_epoch=True, on_step=False)
            self.log("sum", float(len(batch[0])), on_epoch=True, on_step=False, reduce_fx="sum")
            self.log(
                "said",
                batch_idx or float("nan"),
                on_epoch=True,
                on_step=False,
                batch_size=batch_idx,
            )
            self.log("never", float("nan"), on_epoch=True, on_step=False, batch_size=0)
            return super().training_step(batch, batch_idx)

    made = trainer(max_epochs=1)
    made.fit(Rows(), loader(10))  # 4, 4 and 2 rows
    found = made.callback_metrics
    assert found["mean"].item() == pytest.approx(dataset(10).tensors[0].mean().item(), abs=1e-14)
    assert found["sum"].item() == 10
    assert found["said"].item() == pytest.approx((0 * 0 + 1 * 1 + 2 * 2) / 3)
    assert found["never"].isnan()


def test_each_epoch_has_its_own_mean():
    class Epochs(Task):
        def training_step(self, batch, batch_idx):
            self.log("epoch_number", self.current_epoch, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    trainer(max_epochs=3).fit(Epochs(), loader())
    assert [row["epoch_number"] for row in rows() if row["epoch_number"]] == ["0.0", "1.0", "2.0"]


def test_many_numbers_fold_into_one_mean():
    made = trainer(max_epochs=1)
    made.fit(Task(), loader(300, batch_size=1))
    assert made.callback_metrics["train_loss_epoch"] == made.callback_metrics["train_loss"]
    assert len(rows()) == 6 + 1


def test_a_parameter_is_logged_as_it_was():
    class Scale(Task):
        def __init__(self):
            super().__init__()
            self.values = []

        def training_step(self, batch, batch_idx):
            self.values.append(self.net.bias.item())
            self.log("bias", self.net.bias, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    task, made = Scale(), trainer(max_epochs=1)
    made.fit(task, loader())
    assert made.callback_metrics["bias"].item() == pytest.approx(sum(task.values) / 5, abs=1e-14)


def test_rows_of_the_csv():
    trainer(max_epochs=1, log_every_n_steps=2).fit(Task(), loader(), loader())
    found = rows()
    assert [row["step"] for row in found] == ["2", "4", "5"]
    assert [bool(row["train_loss_step"]) for row in found] == [True, True, False]
    assert [bool(row["train_loss_epoch"]) for row in found] == [False, False, True]
    assert found[2]["val_loss"]
    assert {row["epoch"] for row in found} == {"0.0"}


def test_other_loggers():
    calls = []
    logger = SimpleNamespace(
        log=lambda values, step: calls.append((dict(values), step)), close=lambda: None
    )
    trainer(max_epochs=1, logger=logger, enable_checkpointing=False).fit(Task(), loader(8))
    assert [(sorted(values), step) for values, step in calls] == [
        (["epoch", "train_loss_epoch"], 2)
    ]
    trainer(logger=False, enable_checkpointing=False).fit(Task(), loader(8))
    assert not list(Path().rglob("metrics.csv"))


def test_logging_for_the_bar_only():
    class Quiet(Task):
        def validation_step(self, batch, batch_idx):
            self.log("quiet", 1.0, logger=False)

    made = trainer(max_epochs=1)
    made.fit(Quiet(), loader(), loader())
    assert made.callback_metrics["quiet"] == 1
    assert "quiet" not in rows()[0]


def test_objects_that_compute_their_own_value():
    class Meter:
        def __init__(self):
            self.values, self.resets = [], 0

        def compute(self):
            return torch.tensor(max(self.values))

        def reset(self):
            self.values, self.resets = [], self.resets + 1

    class Metered(Task):
        meter = Meter()

        def training_step(self, batch, batch_idx):
            self.meter.values.append(10.0 * self.current_epoch + batch_idx)
            self.log("greatest", self.meter)
            return super().training_step(batch, batch_idx)

    trainer().fit(Metered(), loader())
    assert [row["greatest"] for row in rows()] == ["4.0", "14.0"]
    assert Metered.meter.resets == 2


def test_an_object_that_computes_its_own_value_is_found_on_a_rank_without_rows():
    """With the lists that torchmetrics would gather as floats where they are empty."""

    class Meter(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self):
            super().__init__()
            self.targets, self.total = [], torch.zeros(())

        @property
        def metric_state(self):
            return {"targets": self.targets, "total": self.total}

    here, there = torch.nn.ModuleDict({"meter": Meter()}), torch.nn.ModuleDict({"meter": Meter()})
    here["meter"].targets = [torch.tensor([[1, 2]]), torch.tensor([[3, 4]])]
    place = place_of(here["meter"], list(here.named_modules()))
    found = found_at(place, list(there.named_modules()))
    assert found is there["meter"]
    assert [(each.shape, each.dtype) for each in found.targets] == [((0, 2), torch.int64)]
    assert found.total == 0
    assert place_of(Meter(), list(here.named_modules())) is None


# What is shown


def shown(made, terminal):
    made.console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    return made.console.file


def test_the_bar_is_shown_on_a_terminal():
    seen = []

    class Slow(Task):
        def training_step(self, batch, batch_idx):
            if batch_idx in (
                1,
                3,
            ):  # in the main thread, so that no test has to wait for the bar's own
                console = Console(file=io.StringIO(), width=200)
                console.print(Display(self.trainer._progress, console, enabled=True).drawn())
                seen.append(console.file.getvalue())
            return super().training_step(batch, batch_idx)

    made = trainer(max_epochs=2, enable_progress_bar=True)
    text = shown(made, terminal=True)
    made.fit(Slow(), loader(), loader())
    for part in ("epoch 1/2", "3/5", "loss ", "train_loss ", "steps/s", "0:00 left"):
        assert part in seen[1]
    assert "\x1b[?25l" in text.getvalue()  # the cursor is hidden while there is a bar
    assert "\x1b[?25h" in text.getvalue()
    assert "epoch 2/2 · train_loss_epoch" in text.getvalue()


def test_elsewhere_there_is_a_line_for_each_epoch():
    made = trainer(enable_progress_bar=True)
    text = shown(made, terminal=False)
    made.fit(Task(), loader(), loader())
    lines = text.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert "\x1b" not in text.getvalue()
    made = trainer(enable_progress_bar=False)
    text = shown(made, terminal=True)
    made.fit(Task(), loader())
    assert text.getvalue() == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3, "3"),
        (0.123456, "0.1235"),
        (1e9, "1e+09"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (-2.0, "-2"),
    ],
)
def test_numbers_as_text(number, text):
    assert as_text(torch.tensor(number, dtype=torch.float64)) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (59.6, "1:00"), (3725, "1:02:05")])
def test_durations_as_text(seconds, text):
    assert clock(seconds) == text


# Data


class Digits(DataModule):
    def __init__(self, batch_size=4, calls=None):
        super().__init__()
        self.save_hyperparameters(ignore="calls")
        self.calls = [] if calls is None else calls

    def prepare_data(self):
        self.calls.append("prepare_data")

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        self.parts = random_split(dataset(20), [12, 8])

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=self.hparams["batch_size"])

    test_dataloader = val_dataloader


def test_a_data_module():
    data, task, made = Digits(), Task(), trainer(max_epochs=1)
    made.fit(task, datamodule=data)
    assert data.calls == ["prepare_data", "setup fit"]
    assert data.hparams == {"batch_size": 4}
    assert len(task.seen) == 3
    assert "val_loss" in made.callback_metrics
    made.test()
    made.validate(datamodule=data)
    assert data.calls[2:] == ["prepare_data", "setup test", "prepare_data", "setup validate"]


def test_the_split_is_the_same_in_every_run_and_nobody_notices():
    def split(seed):
        data, task = Digits(), Task()
        torch.manual_seed(seed)
        trainer(max_epochs=1, seed=None, enable_checkpointing=False).fit(task, data)
        return data.parts[0].indices, torch.rand(1)

    (first, drawn), (second, _) = split(1), split(2)
    assert first == second
    torch.manual_seed(1)
    assert drawn == torch.rand(1)


def test_a_task_may_have_its_own_data():
    class Own(Task):
        def train_dataloader(self):
            return loader(8)

        def setup(self, stage):
            self.stage = stage

    task = Own()
    trainer(max_epochs=1).fit(task)
    assert (len(task.seen), task.stage) == (2, "fit")


def test_batch_sizes_can_be_those_of_each_rank(monkeypatch):
    found = []
    original = paceline.Session.loader
    monkeypatch.setattr(
        paceline.Session,
        "loader",
        lambda self, data, **how: found.append(how) or original(self, data, **how),
    )
    trainer(max_epochs=1, per_rank_batch_size=True).fit(Task(), loader(8))
    assert [how["per_rank"] for how in found] == [True]


@pytest.mark.parametrize("loaders", [[], None])
def test_no_loader_to_train_on(loaders):
    with pytest.raises(UsageError, match="there is no loader for train"):
        trainer().fit(Task(), loaders)


@pytest.mark.parametrize("how", [{"datamodule": Digits()}, {"val_dataloaders": loader()}])
def test_a_data_object_and_loaders(how):
    first = Digits() if "val_dataloaders" in how else loader()
    with pytest.raises(UsageError, match="a data object and loaders are both given"):
        trainer().fit(Task(), first, **how)


def test_several_validation_loaders_have_means_of_their_own():
    class Several(Task):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            self.log("which", float(dataloader_idx))
            self.log("all", float(dataloader_idx), add_dataloader_idx=False)

    made = trainer()
    found = made.validate(Several(), [loader(8), loader(4)])
    assert found == [
        {"which/dataloader_idx_0": 0.0, "all": pytest.approx(4 / 12)},
        {"which/dataloader_idx_1": 1.0, "all": pytest.approx(4 / 12)},
    ]
    assert made.num_val_batches == [2, 1]


# Hyperparameters


def test_hyperparameters():
    class Base(Module):
        def __init__(self, width, *args, depth=2, **kwargs):
            super().__init__()
            self.save_hyperparameters()

    class Derived(Base):
        def __init__(self, lr, width=3):
            super().__init__(width=width + 1, extra="x")

    assert Base(1, depth=5, drop=0.1).hparams == {"width": 1, "depth": 5, "drop": 0.1}
    made = Derived(0.1)
    assert made.hparams == {"width": 3, "depth": 2, "extra": "x", "lr": 0.1}
    assert made.hparams.lr == made.hparams["lr"]
    made.hparams.lr = 0.2
    assert made.hparams["lr"] == 0.2
    with pytest.raises(AttributeError, match="no hyperparameter 'wdith'; there are"):
        made.hparams.wdith  # noqa: B018


def test_hyperparameters_by_name():
    class Chosen(Module):
        def __init__(self, a, b, c, how):
            super().__init__()
            how(self)

    assert Chosen(
        1, 2, 3, lambda self: Module.save_hyperparameters(self, {"x": 1}, ignore="y")
    ).hparams == {"x": 1}

    class Named(Module):
        def __init__(self, a, b, c):
            super().__init__()
            self.save_hyperparameters("a", "c", ignore=["c"])

    assert Named(1, 2, 3).hparams == {"a": 1}

    class Wrong(Module):
        def __init__(self, a):
            super().__init__()
            self.save_hyperparameters("b")

    with pytest.raises(UsageError, match="b: no argument of __init__; there are a"):
        Wrong(1)


@pytest.mark.parametrize("kind", [SimpleNamespace, Namespace])
def test_hyperparameters_of_a_namespace(kind):
    class Parsed(Module):
        def __init__(self, args):
            super().__init__()
            self.save_hyperparameters(args, ignore="seed")

    made = Parsed(kind(lr=0.1, width=3, seed=0))
    assert made.hparams == {"lr": 0.1, "width": 3}
    assert made.hparams.lr == 0.1
    with pytest.raises(
        UsageError, match="of type object is not the name of an argument, a mapping or a namespace"
    ):
        Parsed(object())


def test_a_module_works_without_a_trainer():
    task = Task()
    task.training_step(dataset(4)[:], 0)
    assert (task.current_epoch, task.global_step, task.device) == (0, 0, torch.device("cpu"))
    with pytest.raises(UsageError, match="Task has no trainer yet"):
        task.trainer  # noqa: B018
