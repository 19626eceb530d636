"""The Trainer in a world of one, without processes; ``tests/ranks`` has several, ``tests/launch`` real starts."""

import copy
import csv
import io
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import paceline
from paceline import DataModule, Module, Trainer, env
from paceline.errors import UsageError
from paceline.trainer import start
from paceline.trainer.metrics import rows_of
from paceline.trainer.progress import Display

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
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_signals(monkeypatch):
    """Leave the test runner's signal handlers alone: a session that saves would take them."""
    monkeypatch.setattr("paceline.stopping.Stop.arm", lambda self: None)


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


def trainer(**options):
    return Trainer(**{"max_epochs": 2, "seed": 1, "run_dir": "run", "enable_progress_bar": False, **options})


def rows(path="run/metrics.csv"):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def finding(caught):
    return caught.value.finding


def weights(task):
    return [parameter.tolist() for parameter in task.parameters()]


def test_are_public():
    assert (paceline.Trainer, paceline.Module, paceline.DataModule) == (Trainer, Module, DataModule)


# The loop


def test_is_the_loop_that_one_would_write():
    task, by_hand = Task(), Task()
    trainer(max_epochs=3, enable_checkpointing=False, logger=False).fit(task, loader())
    optimizer = by_hand.configure_optimizers()
    for _ in range(3):
        for x, y in loader():
            mse(by_hand.net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert weights(task) == weights(by_hand)
    assert task.seen == [(epoch, batch, 5 * epoch + batch) for epoch in range(3) for batch in range(5)]


def test_accumulation_and_clipping():
    task, by_hand = Task(), Task()
    made = trainer(max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=0.1, enable_checkpointing=False)
    made.fit(task, loader())
    assert made.global_step == 3  # 2 + 2 + 1 batches
    optimizer = by_hand.configure_optimizers()
    for x, y in loader(batch_size=8):
        mse(by_hand.net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(task.net.weight, by_hand.net.weight, atol=1e-12)


def test_clipping_by_value():
    task = Task(lr=1.0)
    before = task.net.weight.detach().clone()
    options = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value", "max_steps": 1}
    trainer(**options, enable_checkpointing=False).fit(task, loader())
    assert (task.net.weight - before).abs().max() <= 1e-3 + 1e-12


@pytest.mark.parametrize(("options", "steps"), [({"max_steps": 7}, 7), ({"max_steps": 7, "max_epochs": None}, 7)])
def test_max_steps(options, steps):
    made, task = trainer(**options), Task()
    made.fit(task, loader())
    assert (made.global_step, len(task.seen)) == (steps, steps)


@pytest.mark.parametrize(("limit", "batches"), [(2, 2), (0.4, 2), (1.0, 5), (1, 1), (0, 0), (99, 5)])
def test_limit_train_batches(limit, batches):
    task = Task()
    trainer(limit_train_batches=limit, enable_checkpointing=False).fit(task, loader())
    assert [index for _, index, _ in task.seen] == [*range(batches)] * 2


def test_a_task_may_be_any_object_that_holds_modules():
    class Plain:
        def __init__(self):
            torch.manual_seed(0)
            self.net = nn.Linear(4, 1).double()

        def training_step(self, batch):
            self.trainer.log("loss", loss := mse(self.net(batch[0]), batch[1]))
            return {"loss": loss}

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.05)

    task, made = Plain(), trainer(log_every_n_steps=1)
    before = weights(task.net)
    made.fit(task, loader())
    assert weights(task.net) != before
    assert len(rows()) == 10


def test_forward_is_the_tasks_own_again(monkeypatch):
    """Inside training_step, after it, and after one that raised; also one that somebody has put into the instance."""
    task = Task()
    mine = task.forward
    task.forward = lambda x: mine(x)
    put = task.forward
    trainer(enable_checkpointing=False).fit(task, loader(), loader())
    assert task.forward is put
    monkeypatch.setattr(Task, "training_step", lambda self, batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer().fit(task, loader())
    assert task.forward is put
    del task.forward
    assert "forward" not in vars(task)


def test_the_users_object_is_left_as_it_was():
    task = Task()
    keys, kind = list(task.state_dict()), type(task)
    trainer().fit(task, loader())
    assert (list(task.state_dict()), type(task)) == (keys, kind)


def test_a_module_fitted_can_be_copied_and_pickled():
    task = Task()
    trainer().fit(task, loader())
    assert weights(copy.deepcopy(task)) == weights(pickle.loads(pickle.dumps(task))) == weights(task)
    assert copy.deepcopy(task)._trainer is None


def test_mixed_precision_reaches_training_and_validation():
    kinds = []

    class Mixed(Task):
        def training_step(self, batch, batch_idx):
            kinds.append((self.net(batch[0].float()).dtype, self(batch[0].float()).dtype))
            return super().training_step([part.float() for part in batch], batch_idx)

        def validation_step(self, batch, batch_idx):
            kinds.append(self.net(batch[0].float()).dtype)

    trainer(precision="bf16", max_steps=1, enable_checkpointing=False).fit(Mixed().float(), loader(), loader(4))
    assert kinds == [(torch.bfloat16, torch.float32), torch.bfloat16]


def test_modes_are_left_as_they_were():
    class Frozen(Task):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Dropout().eval()

        def validation_step(self, batch, batch_idx):
            assert not self.training
            assert not torch.is_grad_enabled()

    task = Frozen()
    trainer(enable_checkpointing=False).fit(task, loader(), loader())
    assert (task.training, task.net.training, task.frozen.training) == (True, True, False)


def test_hooks_in_their_order():
    calls = []

    class Hooked(Task):
        def on_train_epoch_end(self):
            calls.append("task: on_train_epoch_end")

        def on_validation_start(self):
            calls.append("task: on_validation_start")

    class Recorder(paceline.trainer.Callback):
        def on_fit_start(self, trainer, task):
            calls.append("on_fit_start")

        def on_train_start(self, trainer, task):
            calls.append("on_train_start")

        def on_train_batch_start(self, trainer, task, batch, batch_idx):
            calls.append(f"on_train_batch_start {batch_idx}")

        def on_after_backward(self, trainer, task):
            calls.append("on_after_backward")

        def on_before_optimizer_step(self, trainer, task, optimizer):
            assert all(parameter.grad is not None for parameter in task.parameters())
            calls.append("on_before_optimizer_step")

        def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
            assert outputs.shape == ()
            calls.append(f"on_train_batch_end {batch_idx}")

        def on_validation_start(self, trainer, task):
            calls.append("on_validation_start")

        def on_validation_end(self, trainer, task):
            assert "val_loss" in trainer.callback_metrics
            calls.append("on_validation_end")

        def on_train_epoch_end(self, trainer, task):
            assert trainer.callback_metrics["train_loss"] > 0
            calls.append("on_train_epoch_end")

        def on_fit_end(self, trainer, task):
            calls.append("on_fit_end")

    made = trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=Recorder(), enable_checkpointing=False)
    made.fit(Hooked(), loader(8), loader(4))
    assert calls == [
        *("on_fit_start", "on_train_start", "on_train_batch_start 0", "on_after_backward", "on_train_batch_end 0"),
        *("on_train_batch_start 1", "on_after_backward", "on_before_optimizer_step", "on_train_batch_end 1"),
        *("task: on_validation_start", "on_validation_start", "on_validation_end"),
        *("task: on_train_epoch_end", "on_train_epoch_end", "on_fit_end"),
    ]


def test_should_stop_ends_after_the_epoch():
    class Stop:
        def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
            trainer.should_stop = True

    task = Task()
    trainer(max_epochs=5, callbacks=[Stop()]).fit(task, loader())
    assert len(task.seen) == 5


# What is logged


def test_means_are_over_rows():
    class Rows(Task):
        def training_step(self, batch, batch_idx):
            self.log("mean", batch[0].mean(), on_epoch=True, on_step=False)
            self.log("sum", float(len(batch[0])), on_epoch=True, on_step=False, reduce_fx="sum")
            self.log("said", batch_idx, on_epoch=True, on_step=False, batch_size=batch_idx)
            self.log("never", float("nan"), on_epoch=True, on_step=False, batch_size=0)
            return super().training_step(batch, batch_idx)

    made = trainer(max_epochs=1)
    made.fit(Rows(), loader(10))  # 4, 4 and 2 rows
    found = made.callback_metrics
    assert found["mean"].item() == pytest.approx(dataset(10).tensors[0].mean().item(), abs=1e-14)
    assert found["sum"].item() == 10
    assert found["said"].item() == pytest.approx((0 * 0 + 1 * 1 + 2 * 2) / 3)
    assert found["never"].isnan()


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
    logger = SimpleNamespace(log=lambda values, step: calls.append((dict(values), step)), close=lambda: None)
    trainer(max_epochs=1, logger=logger, enable_checkpointing=False).fit(Task(), loader(8))
    assert [(sorted(values), step) for values, step in calls] == [(["epoch", "train_loss_epoch"], 2)]
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


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(3, 2), 3),
        ((torch.zeros(0, 2), torch.zeros(5)), 0),
        ({"a": ["x", "y"], "b": torch.zeros(4)}, 4),
        (["a", "b"], 2),
        ({"a": ["a", "b", "c"]}, 3),
        (torch.tensor(1.0), 1),
        (object(), 1),
        ({}, 1),
    ],
)
def test_rows_of_a_batch(batch, count):
    assert rows_of(batch) == count


# Validation and test


def test_validate_and_test_return_exact_means():
    task, made = Task(), trainer()
    made.fit(task, loader(), loader(7))
    x, y = dataset(7).tensors
    expected = mse(task.net(x), y).item()
    assert made.validate(task, loader(7)) == [{"val_loss": pytest.approx(expected, abs=1e-14)}]
    (values,) = made.test(dataloaders=loader(7))
    assert values == {"test_loss": pytest.approx(expected, abs=1e-14), "rows": pytest.approx((4 * 4 + 3 * 3) / 7)}


def test_validate_needs_no_fit():
    task = Task()
    ((_, value),) = trainer().validate(task, loader(7))[0].items()
    x, y = dataset(7).tensors
    assert value == pytest.approx(mse(task.net(x), y).item(), abs=1e-14)


def test_the_best_checkpoint_is_tested():
    class Worse(Task):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", float(self.current_epoch != 1))
            self.at_best = weights(self) if self.current_epoch == 1 else self.at_best

        at_best = None

    task, made = Worse(), trainer(max_epochs=4, monitor="val_loss")
    made.fit(task, loader(), loader(4))
    assert weights(task) != task.at_best
    made.test(dataloaders=loader(4))
    assert weights(task) == task.at_best
    made.test(task, loader(4), ckpt_path="last")
    assert weights(task) != task.at_best


def test_a_checkpoint_of_another_run_is_tested():
    first = Task()
    trainer().fit(first, loader(), loader(4))
    second, made = Task(), trainer()
    made.test(second, loader(7), ckpt_path="last")
    assert weights(second) == weights(first)


def test_a_checkpoint_from_the_middle_of_an_epoch_is_tested_on_all_samples():
    trainer(max_steps=7).fit(Task(), loader())
    task = Task()
    (values,) = trainer().test(task, loader(), ckpt_path="last")
    x, y = dataset().tensors
    assert values["test_loss"] == pytest.approx(mse(task.net(x), y).item(), abs=1e-14)


@pytest.mark.parametrize(("interval", "validations"), [(None, 1), (1.0, 1), (2, 3), (0.5, 3), (5, 1)])
def test_val_check_interval(interval, validations):
    starts = []
    callback = SimpleNamespace(on_validation_start=lambda trainer, task: starts.append(trainer.global_step))
    made = trainer(max_epochs=1, val_check_interval=interval, callbacks=[callback], enable_checkpointing=False)
    made.fit(Task(), loader(), loader(4))
    assert len(starts) == validations
    assert starts[-1] == 5


def test_check_val_every_n_epoch_and_sanity_checks():
    starts = []
    callback = SimpleNamespace(on_validation_start=lambda trainer, task: starts.append(trainer.global_step))
    made = trainer(max_epochs=4, check_val_every_n_epoch=2, num_sanity_val_steps=1, callbacks=[callback])
    made.fit(Task(), loader(), loader(8))
    assert starts == [0, 10, 20]


def test_limit_val_batches():
    made = trainer(limit_val_batches=0)
    made.fit(Task(), loader(), loader())
    assert "val_loss" not in made.callback_metrics


# Optimizers and schedulers


def rates(configure, *, epochs=4, val=True, **options):
    """Return the learning rate at each epoch's start, for a configure_optimizers(task, optimizer)."""
    found = []

    class Scheduled(Task):
        def on_train_epoch_start(self):
            found.append(self.optimizers().param_groups[0]["lr"])

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", 1.0)

        def configure_optimizers(self):
            return configure(self, torch.optim.SGD(self.parameters(), lr=1.0))

    trainer(max_epochs=epochs, enable_checkpointing=False, **options).fit(
        Scheduled(), loader(8), loader(4) if val else None
    )
    return found


def half(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@pytest.mark.parametrize(
    ("configure", "expected"),
    [
        (lambda task, optimizer: optimizer, [1, 1, 1, 1]),
        (lambda task, optimizer: [optimizer], [1, 1, 1, 1]),
        (lambda task, optimizer: ([optimizer], [half(optimizer)]), [1, 0.5, 0.25, 0.125]),
        (lambda task, optimizer: {"optimizer": optimizer, "lr_scheduler": half(optimizer)}, [1, 0.5, 0.25, 0.125]),
        (
            lambda task, optimizer: ([optimizer], [{"scheduler": half(optimizer), "interval": "step"}]),
            [1, 0.25, 0.0625, 0.015625],
        ),
        (
            lambda task, optimizer: {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": half(optimizer), "frequency": 2},
            },
            [1, 1, 0.5, 0.5],
        ),
        (
            lambda task, optimizer: {
                "optimizer": optimizer,
                "lr_scheduler": {
                    "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
                    "monitor": "val_loss",
                },
            },
            [1, 1, 1, 0.5],
        ),
    ],
    ids=["optimizer", "list", "pair", "dict", "by step", "frequency", "plateau"],
)
def test_configure_optimizers(configure, expected):
    assert rates(configure) == expected


def test_several_optimizers_all_step():
    class Two(Task):
        def configure_optimizers(self):
            return [torch.optim.SGD([self.net.weight], lr=0.1), torch.optim.SGD([self.net.bias], lr=0.1)]

    task = Two()
    before = weights(task)
    trainer(max_epochs=1).fit(task, loader(4))
    assert all(now != then for now, then in zip(weights(task), before, strict=True))
    assert len(task.optimizers()) == 2


def test_estimated_stepping_batches():
    found = []

    class Asks(Task):
        def configure_optimizers(self):
            found.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    for options in ({}, {"accumulate_grad_batches": 2}, {"max_steps": 3}, {"max_epochs": -1}):
        trainer(enable_checkpointing=False, **{"max_steps": 4 if "max_epochs" in options else -1, **options}).fit(
            Asks(), loader()
        )
    assert found == [10, 6, 3, 4]


def test_a_plateau_without_its_metric():
    def configure(task, optimizer):
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_los"}}

    with pytest.raises(UsageError) as caught:
        rates(configure)
    assert finding(caught).what.startswith("the metric 'val_los' was never logged; logged were train_loss")
    assert finding(caught).fix == 'monitor="val_loss"'


# Early stopping, checkpoints, resuming


def scripted(losses):
    """A task whose val_loss in each epoch is given."""

    class Scripted(Task):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", losses[self.current_epoch])

    return Scripted()


@pytest.mark.parametrize(
    ("losses", "options", "epochs"),
    [
        ([5, 4, 3, 2, 1, 0], {}, 6),
        ([5, 4, 4, 4, 4, 4], {}, 4),
        ([5, 4, 3.95, 3.9, 3.85, 3.8], {"min_delta": 0.2}, 4),
        ([5, 6, 5, 7, 4, 4], {"mode": "max"}, 6),
        ([5, float("nan"), float("nan"), 1, 1, 1], {}, 3),
        ([float("nan"), 3, 4, 2, 1, 1], {}, 6),
        ([1, 2, 3, 4, 5, 6], {"patience": None}, 6),
    ],
)
def test_early_stopping(losses, options, epochs):
    task = scripted(losses)
    trainer(max_epochs=6, monitor="val_loss", **{"patience": 2, **options}).fit(task, loader(4), loader(4))
    assert len(task.seen) == epochs


def test_a_run_that_ran_out_of_patience_does_not_go_on():
    trainer(max_epochs=6, monitor="val_loss", patience=1).fit(scripted([1, 2, 3, 4, 5, 6]), loader(4), loader(4))
    task = scripted([0] * 6)
    trainer(max_epochs=6, monitor="val_loss", patience=1, resume=True).fit(task, loader(4), loader(4))
    assert task.seen == []


def test_a_monitor_that_is_never_logged():
    with pytest.raises(UsageError) as caught:
        trainer(monitor="val_acc").fit(Task(), loader(), loader())
    assert finding(caught).name == "option-invalid"
    assert finding(caught).where == "Trainer(monitor=...)"
    assert "logged were train_loss, train_loss_epoch, val_loss" in finding(caught).what


def test_resume_goes_on_where_the_run_ended():
    whole = Task()
    trainer(max_epochs=3, run_dir="whole").fit(whole, loader(shuffle=True))
    trainer(max_epochs=1).fit(Task(), loader(shuffle=True))
    task, made = Task(), trainer(max_epochs=3, resume=True)
    made.fit(task, loader(shuffle=True))
    assert weights(task) == weights(whole)
    assert [epoch for epoch, _, _ in task.seen] == [1] * 5 + [2] * 5
    again, made = Task(), trainer(max_epochs=3)
    made.fit(again, loader(shuffle=True), ckpt_path="last")
    assert again.seen == []
    assert weights(again) == weights(whole)


def test_a_run_that_was_not_launched_begins_anew():
    trainer(max_epochs=1).fit(Task(), loader())
    task = Task()
    trainer(max_epochs=1).fit(task, loader())
    assert len(task.seen) == 5


def test_the_folder_of_a_launched_run_is_gone_on_in(monkeypatch):
    monkeypatch.setenv("PACELINE_RUN_DIR", "run")
    trainer(max_epochs=1, run_dir=None).fit(Task(), loader())
    task = Task()
    trainer(max_epochs=2, run_dir=None).fit(task, loader())
    assert [epoch for epoch, _, _ in task.seen] == [1] * 5


def test_the_last_step_in_the_middle_of_an_epoch_and_on_from_there():
    """Batches and means go on as if nothing had been: also the mean over an epoch that two runs shared."""
    whole = Task()
    made = trainer(max_epochs=2, run_dir="whole")
    made.fit(whole, loader(shuffle=True))
    expected = rows("whole/metrics.csv")[-1]["train_loss_epoch"]
    trainer(max_steps=7).fit(Task(), loader(shuffle=True))
    task = Task()
    trainer(resume=True).fit(task, loader(shuffle=True))
    assert weights(task) == weights(whole)
    assert task.seen == [(1, 2, 7), (1, 3, 8), (1, 4, 9)]
    assert float(rows()[-1]["train_loss_epoch"]) == pytest.approx(float(expected), abs=1e-14)


def test_a_limited_epoch_is_a_whole_one():
    trainer(max_epochs=1, limit_train_batches=2).fit(Task(), loader())
    task = Task()
    trainer(limit_train_batches=2, resume=True).fit(task, loader())
    assert task.seen == [(1, 0, 2), (1, 1, 3)]


class Scheduled(Task):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [half(optimizer)]


def test_an_epoch_in_two_runs_is_one_for_schedulers():
    trainer(max_steps=7).fit(Scheduled(), loader())
    task = Scheduled()
    trainer(resume=True).fit(task, loader())
    assert task.optimizers().param_groups[0]["lr"] == 0.05 / 4


def test_a_limit_that_cuts_through_a_step():
    with pytest.raises(UsageError) as caught:
        trainer(limit_train_batches=3, accumulate_grad_batches=2).fit(Task(), loader())
    assert finding(caught).fix == "Trainer(limit_train_batches=4)"
    made = trainer(limit_train_batches=99, accumulate_grad_batches=2, max_epochs=1)
    made.fit(Task(), loader())
    assert made.global_step == 3


def test_schedulers_are_in_the_checkpoint():
    trainer(max_epochs=2).fit(Scheduled(), loader(4))
    task = Scheduled()
    trainer(max_epochs=3, resume=True).fit(task, loader(4))
    assert task.optimizers().param_groups[0]["lr"] == 0.05 / 8


def test_checkpoints_are_kept_as_asked_for():
    made = trainer(max_epochs=5, monitor="val_loss", save_top_k=2)
    made.fit(scripted([1, 2, 3, 4, 5]), loader(4), loader(4))
    assert len([*made.session.run_dir.checkpoints.iterdir()]) == 4  # the two best, the two last
    trainer(enable_checkpointing=False, run_dir="none").fit(Task(), loader())
    assert not (made.session.run_dir.root.parent / "none" / "checkpoints").exists()


def test_a_checkpoint_that_is_not_there():
    with pytest.raises(UsageError) as caught:
        trainer().fit(Task(), loader(), ckpt_path="last")
    assert finding(caught).name == "checkpoint-missing"


def test_another_fit_is_another_run():
    made, first, second = trainer(enable_checkpointing=False), Task(), Task()
    made.fit(first, loader())
    made.fit(second, loader())
    assert weights(first) == weights(second)
    assert made.global_step == 10


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
        paceline.Session, "loader", lambda self, data, **how: found.append(how) or original(self, data, **how)
    )
    trainer(max_epochs=1, per_rank_batch_size=True).fit(Task(), loader(8))
    assert found == [{"per_rank": True}]


@pytest.mark.parametrize("loaders", [[], None])
def test_no_loader_to_train_on(loaders):
    with pytest.raises(UsageError, match="there is no loader for train"):
        trainer().fit(Task(), loaders)


def test_several_loaders_are_refused_with_what_to_write():
    with pytest.raises(UsageError, match="there are 2 loaders for val"):
        trainer().fit(Task(), loader(), [loader(), loader()])


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

    assert Chosen(1, 2, 3, lambda self: Module.save_hyperparameters(self, {"x": 1}, ignore="y")).hparams == {"x": 1}

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


def test_a_module_works_without_a_trainer():
    task = Task()
    task.training_step(dataset(4)[:], 0)
    assert (task.current_epoch, task.global_step, task.device) == (0, 0, torch.device("cpu"))
    with pytest.raises(UsageError, match="Task has no trainer yet"):
        task.trainer  # noqa: B018


# Mistakes


@pytest.mark.parametrize(
    ("options", "name", "fix"),
    [
        ({"max_epoch": 3}, "option-unknown", "Trainer(max_epochs=...)"),
        ({"deterministic": True}, "option-unknown", "torch.use_deterministic_algorithms(True)"),
        ({"zzz": 3}, "option-unknown", "see help(paceline.Trainer)"),
        ({"max_epochs": 1.5}, "option-invalid", "Trainer(max_epochs=-1)"),
        ({"max_epochs": True}, "option-invalid", "Trainer(max_epochs=-1)"),
        ({"accelerator": "gpuu"}, "option-invalid", 'Trainer(accelerator="gpu")'),
        ({"accelerator": "gpu"}, "option-contradicted", 'Trainer(accelerator="auto")'),
        ({"devices": [0, 1]}, "option-invalid", "CUDA_VISIBLE_DEVICES=0,1"),
        ({"devices": 0}, "option-invalid", "CUDA_VISIBLE_DEVICES=0,1"),
        ({"num_nodes": 2}, "option-contradicted", "srun --nodes 2 python script.py"),
        ({"precision": "16-mixd"}, "option-invalid", 'precision="16-mixed"'),
        ({"strategy": "ddp_spawn"}, "option-invalid", "ddp"),
        ({"mode": "minimum"}, "option-invalid", 'Trainer(mode="min")'),
        ({"patience": 3}, "option-contradicted", 'Trainer(monitor="val_loss", patience=3)'),
        ({"gradient_clip_val": 0.0}, "option-invalid", "Trainer(gradient_clip_val=1.0)"),
        ({"gradient_clip_algorithm": "nrom"}, "option-invalid", 'Trainer(gradient_clip_algorithm="norm")'),
        ({"limit_train_batches": 1.5}, "option-invalid", "Trainer(limit_train_batches=1.0)"),
        ({"val_check_interval": 0}, "option-invalid", "Trainer(limit_val_batches=0)"),
        ({"default_root_dir": "x"}, "option-contradicted", "Trainer(run_dir=...)"),
        ({"accumulate_grad_batches": 0}, "option-invalid", "Trainer(accumulate_grad_batches=1)"),
        ({"logger": "csv"}, "option-invalid", "Trainer(logger="),
        ({"callbacks": [object()]}, "option-invalid", "def on_train_epoch_end(self, trainer, task): ..."),
        (
            {"callbacks": [SimpleNamespace(on_train_epoch_ends=print)]},
            "option-invalid",
            "def on_train_epoch_end(self, trainer, task): ...",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_argument_is_refused_with_what_to_write(options, name, fix):
    with pytest.raises(UsageError) as caught:
        trainer(**options)
    assert finding(caught).name == name
    assert fix in finding(caught).fix


def test_a_fit_without_an_end():
    with pytest.raises(UsageError, match=r"max_epochs=None is not a number, nor is max_steps"):
        trainer(max_epochs=None).fit(Task(), loader())


class Named:
    """Tasks that lack something, or have too much."""

    class NoStep(Module):
        def trainig_step(self, batch, batch_idx): ...

    class NoOptimizer(Module):
        def training_step(self, batch, batch_idx): ...

    class Manual(Task):
        automatic_optimization = False

    class Old(Task):
        def training_epoch_end(self, outputs): ...

    class NoLoss(Task):
        def training_step(self, batch, batch_idx):
            return {"lss": 1}

    class Nothing(Task):
        def training_step(self, batch, batch_idx): ...

    class NoneToOptimize(Task):
        def configure_optimizers(self):
            return None

    class Scheduler(Task):
        def configure_optimizers(self):
            return {"optimizer": super().configure_optimizers(), "lr_scheduler": {"schduler": None}}

    class Vector(Task):
        def training_step(self, batch, batch_idx):
            self.log("rows", batch[0])

    class Text(Task):
        def training_step(self, batch, batch_idx):
            self.log("text", "high")

    class Option(Task):
        def training_step(self, batch, batch_idx):
            self.log("x", 1.0, progbar=True)

    class Neither(Task):
        def training_step(self, batch, batch_idx):
            self.log("x", 1.0, on_step=False, on_epoch=False)

    class Greatest(Task):
        def training_step(self, batch, batch_idx):
            self.log("x", 1.0, reduce_fx="max")

    class Compiled(Task):
        _compiled_call_impl = staticmethod(print)  # as after task.compile(), whose import takes seconds

    class Outside(Task):
        def on_train_start(self):
            self.log("x", 1.0)


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ("NoStep", "NoStep has no training_step; is trainig_step meant to be it?"),
        ("NoOptimizer", "NoOptimizer has no configure_optimizers"),
        ("Manual", "Manual sets automatic_optimization=False"),
        ("Old", "Old.training_epoch_end would never be called by this Trainer"),
        ("NoLoss", "training_step returned a dict with lss, and no loss"),
        ("Nothing", "training_step returned NoneType, and no loss"),
        ("NoneToOptimize", "configure_optimizers returned NoneType"),
        ("Scheduler", "lr_scheduler has an unknown key 'schduler'"),
        ("Vector", r"rows is a Tensor of shape \(4, 4\) and not a number"),
        ("Text", "text is a str and not a number"),
        ("Option", "log has no option progbar"),
        ("Neither", "on_step=False and on_epoch=False leave nothing to log"),
        ("Greatest", "reduce_fx='max' is not one of mean, sum"),
        ("Outside", "nothing is under way that it could belong to"),
        ("Compiled", "the task itself is compiled"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(task, what):
    with pytest.raises(UsageError, match=what) as caught:
        trainer(max_epochs=1).fit(getattr(Named, task)(), loader())
    assert finding(caught).fix


def test_a_validation_without_a_task():
    with pytest.raises(UsageError, match="there is no task"):
        trainer().validate()


def test_lightnings_own_are_refused_with_what_to_write():
    lightning = type("LightningModule", (nn.Module,), {"__module__": "lightning.pytorch.core.module"})
    stopping = type("EarlyStopping", (), {"__module__": "lightning.pytorch.callbacks.early_stopping"})
    with pytest.raises(UsageError) as caught:
        trainer().fit(type("Mine", (lightning,), {})(), loader())
    assert finding(caught).fix == "class Mine(paceline.Module)"
    with pytest.raises(UsageError) as caught:
        trainer(callbacks=[stopping()])
    assert finding(caught).fix == 'Trainer(monitor="val_loss", mode="min", patience=3)'


# Ranks of its own


@pytest.fixture
def script(monkeypatch, tmp_path):
    """A script that this process seems to run; returns what it is replaced by."""
    calls = []
    path = tmp_path / "train.py"
    path.write_text("")
    monkeypatch.setattr(start.os, "execv", lambda program, command: calls.append(command))
    monkeypatch.setattr(start.sys, "argv", ["train.py", "--lr", "1"])
    monkeypatch.setitem(start.sys.modules, "__main__", SimpleNamespace(__file__=str(path), __spec__=None))
    return calls


def test_several_devices_start_the_script_anew(script, tmp_path, capsys):
    with pytest.raises(UsageError):  # the replacement does not take place here
        trainer(devices=2)
    ((_, *command),) = script
    assert command == ["-m", "paceline", "run", "--nproc-per-node", "2", str(tmp_path / "train.py"), "--lr", "1"]
    assert "Trainer(devices=2) starts its ranks with: paceline run --nproc-per-node 2" in capsys.readouterr().err


def test_a_module_is_started_anew_as_a_module(script, monkeypatch):
    main = SimpleNamespace(__file__="x", __spec__=SimpleNamespace(name="project.train.__main__"))
    monkeypatch.setitem(start.sys.modules, "__main__", main)
    start.start_ranks(3, 1)
    assert script[0][5:] == ["3", "-m", "project.train", "--lr", "1"]


@pytest.mark.parametrize("devices", [1, "1", "auto", -1])
def test_one_device_starts_nothing(script, devices):
    trainer(devices=devices)
    assert script == []


def test_a_rank_starts_no_ranks(script, monkeypatch):
    """Whatever else the environment says: it would never end."""
    monkeypatch.setenv("PACELINE_RUN_TOKEN", "x")
    monkeypatch.setenv("PACELINE_LAUNCHER", "none")
    with pytest.raises(UsageError, match="devices=2 and num_nodes=1 make 2 ranks, and this run was started with 1"):
        trainer(devices=2)
    assert script == []


def test_in_a_notebook(monkeypatch):
    monkeypatch.setitem(start.sys.modules, "__main__", SimpleNamespace(__spec__=None))
    with pytest.raises(UsageError) as caught:
        trainer(devices=2)
    assert finding(caught).fix == "put it into a function: paceline.launch(train, nproc_per_node=2)"


# What is shown


def shown(made, terminal):
    made.console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    return made.console.file


def test_the_bar_is_shown_on_a_terminal():
    seen = []

    class Slow(Task):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:  # in the main thread, so that no test has to wait for the bar's own
                console = Console(file=io.StringIO(), width=200)
                console.print(Display(self.trainer._progress, console, enabled=True).drawn())
                seen.append(console.file.getvalue())
            return super().training_step(batch, batch_idx)

    made = trainer(max_epochs=2, enable_progress_bar=True)
    text = shown(made, terminal=True)
    made.fit(Slow(), loader(), loader())
    assert "epoch 1/2" in seen[0]
    assert "3/5" in seen[0]
    assert "loss " in seen[0]
    assert "train_loss " in seen[0]
    assert "steps/s" in seen[0]
    assert "0:00 left" in seen[0]
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
