"""What scripts for Lightning rely on: arguments, hooks, attributes, loggers and checkpoints."""

import csv
import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline import DataModule, Module
from paceline.errors import UsageError
from paceline.train.model.strategy import DDP
from paceline.train.trainer import arguments
from refusals import refusal
from unit.train.trainer.training import Stops, Task, loader, starts_of_validations, trainer, weights

# Arguments


def test_none_and_0_where_lightning_takes_them():
    made = trainer(
        callbacks=None,
        logger=None,
        gradient_clip_val=0,
        gradient_clip_algorithm=None,
        devices=[0],
        max_steps=None,
        log_every_n_steps=None,
        num_sanity_val_steps=None,
        enable_checkpointing=None,
        accelerator=None,
        precision=None,
        strategy="auto",
    )
    made.fit(Task(), loader())
    assert (made.callbacks, made.gradient_clip_val, made.log_every_n_steps) == ([], None, 50)
    assert os.path.exists("run/metrics.csv")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("ddp_find_unused_parameters_true", DDP(find_unused_parameters=True)),
        ("ddp_find_unused_parameters_false", "ddp"),
        (None, "ddp"),
        ("fsdp", "fsdp"),
    ],
)
def test_strategies(strategy, expected):
    assert arguments.read_strategy(strategy) == expected


@pytest.mark.parametrize(("devices", "number"), [([0, 1], 2), ("0,1", 2), ("0,", 1), ("2", 2)])
def test_devices(devices, number):
    assert arguments.read_devices(devices) == number


@pytest.mark.parametrize(
    ("duration", "seconds"), [("01:02:03:04", 93784), ({"minutes": 2}, 120), (None, None)]
)
def test_durations(duration, seconds):
    assert arguments.read_duration(duration, where="Timer") == seconds


def test_a_duration_that_is_none():
    finding = refusal(UsageError, trainer, max_time="3h")
    assert finding.fix == 'Trainer(max_time="00:03:00:00") ends after three hours'


def test_fast_dev_run_leaves_no_traces():
    task = Task()
    made = trainer(fast_dev_run=2, max_epochs=9)
    made.fit(task, loader(), loader())
    assert [index for _, index, _ in task.seen] == [0, 1]
    assert made.num_val_batches == [2]
    assert not os.path.exists("run/metrics.csv")
    assert not os.path.exists("run/checkpoints")


def test_overfit_batches_are_the_same_in_each_epoch():
    seen = []

    class Sees(Task):
        def training_step(self, batch, batch_idx):
            seen.append(batch[0].sum().item())
            return super().training_step(batch, batch_idx)

    trainer(overfit_batches=2).fit(Sees(), loader(shuffle=True))
    expected = [x.sum().item() for x, _ in loader()][:2]
    assert seen == expected * 2


@pytest.mark.parametrize(
    ("options", "epochs"), [({}, 1), ({"min_epochs": 3}, 3), ({"min_steps": 11}, 3)]
)
def test_training_does_not_stop_before_its_least_epochs_and_steps(options, epochs):
    task = Task()
    trainer(max_epochs=5, callbacks=[Stops()], **options).fit(task, loader())
    assert len(task.seen) == 5 * epochs


def test_max_time_ends_after_a_batch():
    task = Task()
    made = trainer(max_epochs=None, max_time={"microseconds": 1})
    made.fit(task, loader())
    assert len(task.seen) == 1


def test_validations_by_batches_over_epochs():
    starts, callback = starts_of_validations(paceline.callbacks.LambdaCallback)
    made = trainer(
        max_epochs=4, check_val_every_n_epoch=None, val_check_interval=3, callbacks=callback
    )
    made.fit(Task(), loader(8), loader(4))
    assert starts == [3, 6]


@pytest.mark.parametrize("profiler", ["simple", "pytorch"])
def test_profilers(profiler, capsys):
    trainer(max_epochs=1, profiler=profiler).fit(Task(), loader(4))
    printed = capsys.readouterr()
    if profiler == "simple":
        assert "training batch" in printed.err
    else:
        assert "aten::mse_loss" in printed.out
        assert os.path.exists("run/rank-000-trace.json")


# Hooks


def test_optimizer_hooks_replace_the_step():
    calls = []

    class Hooked(Task):
        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
            calls.append(("step", epoch, batch_idx, float(optimizer_closure()) > 0))
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

        def configure_gradient_clipping(self, optimizer, value, algorithm):
            calls.append(("clip", value, algorithm))
            self.clip_gradients(optimizer, value, algorithm)

        def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
            calls.append(("zero",))
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

        def lr_scheduler_step(self, scheduler, metric):
            calls.append(("schedule", metric))
            super().lr_scheduler_step(scheduler, metric)

        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    hooked, plain = Hooked(), Task()
    options = {"max_epochs": 1, "gradient_clip_val": 0.1, "enable_checkpointing": False}
    trainer(**options).fit(hooked, loader(4))
    trainer(**options).fit(plain, loader(4))
    assert calls == [("clip", 0.1, "norm"), ("step", 0, 0, True), ("zero",), ("schedule", None)]
    assert weights(hooked) == weights(plain)
    assert isinstance(hooked.lr_schedulers(), torch.optim.lr_scheduler.StepLR)


def test_batches_are_changed_after_their_transfer():
    class Halves(DataModule):
        def train_dataloader(self):
            return loader(4)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return [part[:2] for part in batch]

    sizes = []

    class Sees(Task):
        def training_step(self, batch, batch_idx):
            sizes.append(len(batch[0]))
            return super().training_step(batch, batch_idx)

    trainer(max_epochs=1).fit(Sees(), Halves())
    assert sizes == [2]


def test_hooks_around_the_transfer_of_a_batch():
    calls = []

    class Moves(DataModule):
        def train_dataloader(self):
            return loader(4)

        predict_dataloader = val_dataloader = train_dataloader

        def on_before_batch_transfer(self, batch, dataloader_idx):
            calls.append("before")
            return super().on_before_batch_transfer(batch, dataloader_idx)

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            calls.append(str(device))
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    class Doubles(Task):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            calls.append("after")
            return [2 * part for part in batch]

        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            raise AssertionError("that of the data object comes first")

        def predict_step(self, batch, batch_idx):
            return batch[0]

    made, task = trainer(max_epochs=1), Doubles()
    made.fit(task, Moves())
    made.validate(task)
    assert calls == ["before", str(made.session.device), "after"] * 3
    (found,) = made.predict(task)
    assert found.tolist() == (2 * next(iter(loader(4)))[0]).tolist()


def test_setup_teardown_and_exceptions_of_callbacks():
    calls = []

    class Records(paceline.Callback):
        def setup(self, trainer, task, stage):
            calls.append(f"setup {stage}")

        def teardown(self, trainer, task, stage):
            calls.append(f"teardown {stage}")

        def on_exception(self, trainer, task, exception):
            calls.append(type(exception).__name__)

    class Fails(Task):
        def on_train_start(self):
            raise RuntimeError("x")

    made = trainer(callbacks=[Records()])
    with pytest.raises(RuntimeError):
        made.fit(Fails(), loader())
    assert calls == ["setup fit", "RuntimeError", "teardown fit"]
    assert (made.interrupted, made.state.fn, made.state.stage) == (True, "fit", None)


def test_a_task_adds_to_its_checkpoints():
    found = []

    class Saves(Task):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = 7

        def on_load_checkpoint(self, checkpoint):
            found.append((checkpoint["mine"], checkpoint["hyper_parameters"]))

    trainer(max_epochs=1).fit(Saves(), loader())
    trainer(max_epochs=2).fit(Saves(), loader(), ckpt_path="last")
    assert found == [(7, {"lr": 0.05})]


def test_a_state_dict_that_a_hook_changes_is_refused():
    class Drops(Task):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["state_dict"].clear()

    with pytest.raises(UsageError, match=r'on_save_checkpoint changed checkpoint\["state_dict"\]'):
        trainer(max_epochs=1).fit(Drops(), loader())


# Manual optimization


class Manual(Task):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def test_manual_optimization_is_the_same_as_automatic():
    manual, automatic = Manual(), Task()
    made = trainer()
    made.fit(manual, loader())
    trainer().fit(automatic, loader())
    assert weights(manual) == weights(automatic)
    assert made.global_step == 10


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("automatic", "the Trainer runs backward itself"),
        ("retain", "manual_backward takes a loss alone, not retain_graph"),
    ],
)
def test_manual_backward_where_it_does_not_fit(kind, what):
    class Misuses(Task):
        automatic_optimization = kind == "automatic"

        def training_step(self, batch, batch_idx):
            loss = nn.functional.mse_loss(self(batch[0]), batch[1])
            self.manual_backward(loss, **({"retain_graph": True} if kind == "retain" else {}))

    with pytest.raises(UsageError, match=what):
        trainer().fit(Misuses(), loader())


@pytest.mark.parametrize("options", [{"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}])
def test_manual_optimization_with_what_it_leaves_to_the_script(options):
    with pytest.raises(UsageError, match="under manual optimization training_step does this"):
        trainer(**options).fit(Manual(), loader())


def test_an_epoch_is_not_skipped_in_silence():
    class Skips(Task):
        def on_train_batch_start(self, batch, batch_idx):
            return -1

    with pytest.raises(UsageError, match="on_train_batch_start returned -1"):
        trainer().fit(Skips(), loader())


def test_hooks_around_evaluation_mode():
    calls = []
    names = [f"on_validation_model_{what}" for what in ("eval", "zero_grad", "train")]
    methods = {name: lambda self, name=name: calls.append(name) for name in names}
    trainer().validate(type("Hooked", (Task,), methods)(), loader(4))
    assert calls == names


# Checkpoints


def test_a_checkpoint_makes_a_module_again():
    task, made = Task(lr=0.01), trainer()
    made.fit(task, loader())
    made.save_checkpoint("own.ckpt")
    made.save_checkpoint("weights.ckpt", weights_only=True)
    for path in ("own.ckpt", "weights.ckpt", made.checkpoint_callback.best_model_path):
        again = Task.load_from_checkpoint(path)
        assert (weights(again), again.hparams) == (weights(task), {"lr": 0.01})
    assert Task.load_from_checkpoint("own.ckpt", lr=0.5).hparams.lr == 0.5
    state = torch.load("weights.ckpt", weights_only=True)
    assert sorted(state["state_dict"]) == ["net.bias", "net.weight"]


def test_a_saved_checkpoint_resumes():
    whole, made = Task(), trainer(max_epochs=3, run_dir="whole")
    made.fit(whole, loader())

    class Saves:
        def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
            if trainer.global_step == 7:
                trainer.save_checkpoint("at-7.ckpt")

    trainer(max_epochs=2, callbacks=Saves(), run_dir="first").fit(Task(), loader())
    task = Task()
    trainer(max_epochs=3, run_dir="second").fit(task, loader(), ckpt_path="at-7.ckpt")
    assert weights(task) == weights(whole)
    assert task.seen[0] == (1, 2, 7)


@pytest.mark.parametrize(
    ("path", "name"), [("none.ckpt", "checkpoint-missing"), ("text.ckpt", "option-invalid")]
)
def test_a_checkpoint_that_cannot_be_loaded(path, name):
    torch.save({"x": 1}, "text.ckpt")
    assert refusal(UsageError, Task.load_from_checkpoint, path).name == name


class Choice:
    """A hyperparameter that is not plain data."""


@pytest.mark.parametrize("weights_only", [False, True])
def test_what_is_not_plain_data_is_unpickled_on_request_alone(weights_only):
    class Chooses(Task):
        def __init__(self, choice):
            super().__init__()
            self.save_hyperparameters()

    made = trainer(max_epochs=1)
    made.fit(Chooses(Choice()), loader())
    made.save_checkpoint("kept.ckpt", weights_only=weights_only)
    finding = refusal(UsageError, Chooses.load_from_checkpoint, "kept.ckpt")
    assert finding.name == "checkpoint-needs-classes"
    assert "load_from_checkpoint(path, weights_only=False)" in finding.fix
    again = Chooses.load_from_checkpoint("kept.ckpt", weights_only=False)
    assert isinstance(again.hparams.choice, Choice)


def test_a_checkpoint_of_another_class_is_refused():
    class Other(Module):
        def __init__(self, width):
            super().__init__()

    made = trainer(max_epochs=1)
    made.fit(Task(), loader())
    made.save_checkpoint("own.ckpt")
    with pytest.raises(UsageError, match="Other needs width, which the checkpoint does not hold"):
        Other.load_from_checkpoint("own.ckpt")
    with pytest.raises(UsageError, match="do not fit Other"):
        Other.load_from_checkpoint("own.ckpt", width=1)


# Predict, attributes, loggers


def test_predict():
    class Named(Task):
        def predict_step(self, batch, batch_idx):
            return f"batch {batch_idx}"

    made = trainer(limit_predict_batches=2)
    assert made.predict(Named(), loader()) == ["batch 0", "batch 1"]
    assert made.predict(Named(), [loader(4), loader(8)]) == [["batch 0"], ["batch 0", "batch 1"]]
    assert made.predict(Named(), loader(), return_predictions=False) is None


def test_attributes_while_it_runs():
    found = []

    class Looks(paceline.Callback):
        def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
            found.append((trainer.training, trainer.validating, trainer.is_last_batch))

        def on_validation_end(self, trainer, task):
            found.append((trainer.training, trainer.validating, trainer.sanity_checking))

    made, task = trainer(max_epochs=1, callbacks=Looks(), num_sanity_val_steps=1), Task()
    made.fit(task, loader(8), loader(4))
    assert found == [
        (False, False, True),
        (True, False, False),
        (True, False, True),
        (False, True, False),
    ]
    assert made.lightning_module is task
    assert task.logger is made.logger
    assert made.logged_metrics["val_loss"] == made.callback_metrics["val_loss"]
    assert (made.state.status, made.num_training_batches, made.num_val_batches) == (
        "finished",
        2,
        [1],
    )
    assert Path(made.log_dir) == made.session.run_dir.root


def test_freeze_and_unfreeze():
    task = Task()
    task.freeze()
    assert not any(parameter.requires_grad for parameter in task.parameters())
    assert not task.training
    task.unfreeze()
    assert all(parameter.requires_grad for parameter in task.parameters())
    assert task.training


def test_loggers_of_lightnings_form():
    logger = paceline.loggers.CSVLogger("logs", name="mine", prefix="p")
    trainer(max_epochs=1, logger=logger).fit(Task(), loader(), loader(4))
    with open("logs/mine/version_0/metrics.csv", newline="") as file:
        columns = next(csv.reader(file))
    assert columns == ["step", "p-epoch", "p-train_loss_epoch", "p-val_loss"]
    assert json.loads(Path("logs/mine/version_0/hparams.yaml").read_text()) == {"lr": 0.05}
    assert paceline.loggers.CSVLogger("logs", name="mine").version == 1


def test_any_object_with_log_metrics_is_a_logger():
    class Mine(paceline.loggers.Logger):
        def __init__(self):
            self.calls = []

        def log_metrics(self, metrics, step=None):
            self.calls.append((sorted(metrics), step))

        def log_hyperparams(self, params, *args, **options):
            self.calls.append(dict(params))

    mine = Mine()
    made = trainer(max_epochs=1, logger=[mine])
    made.fit(Task(), loader(8), loader(4))
    assert made.logger is mine
    assert mine.calls == [{"lr": 0.05}, (["epoch", "train_loss_epoch", "val_loss"], 2)]


def test_a_data_object_of_datasets():
    data = DataModule.from_datasets(loader(8).dataset, loader(4).dataset, batch_size=4)
    task = Task()
    made = trainer(max_epochs=1)
    made.fit(task, datamodule=data)
    assert (len(task.seen), made.num_val_batches, made.datamodule) == (2, [1], data)


def test_seed_everything():
    assert paceline.seed_everything(3) == 3
    first = torch.rand(2).tolist()
    paceline.seed_everything(3)
    assert torch.rand(2).tolist() == first
    with pytest.raises(UsageError, match="seed='x' is not an int"):
        paceline.seed_everything("x")
