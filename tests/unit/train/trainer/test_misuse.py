"""What the Trainer refuses, and how it starts ranks of its own."""

from types import SimpleNamespace

import pytest
from torch import nn

from paceline import Module
from paceline.errors import UsageError
from paceline.machine import own_process
from paceline.train.trainer import start
from paceline.train.trainer.options import num_batches
from refusals import refusal
from unit.train.trainer.training import Task, loader, trainer

# Mistakes


@pytest.mark.parametrize(
    ("options", "name", "fix"),
    [
        ({"max_epoch": 3}, "option-unknown", "Trainer(max_epochs=...)"),
        ({"plugins": []}, "option-unknown", "Trainer(precision=..., strategy=...)"),
        ({"zzz": 3}, "option-unknown", "see help(paceline.Trainer)"),
        ({"max_epochs": 1.5}, "option-invalid", "Trainer(max_epochs=-1)"),
        ({"max_epochs": True}, "option-invalid", "Trainer(max_epochs=-1)"),
        ({"accelerator": "gpuu"}, "option-invalid", 'Trainer(accelerator="gpu")'),
        pytest.param(
            {"accelerator": "gpu"},
            "option-contradicted",
            'Trainer(accelerator="auto")',
            marks=pytest.mark.cpu,
            id="gpu",
        ),
        ({"devices": [1, 2]}, "option-invalid", "CUDA_VISIBLE_DEVICES=0,1"),
        ({"devices": 0}, "option-invalid", "CUDA_VISIBLE_DEVICES=0,1"),
        ({"num_nodes": 2}, "option-contradicted", "srun --nodes 2 python script.py"),
        ({"precision": "16-mixd"}, "option-invalid", 'precision="16-mixed"'),
        ({"strategy": "ddp_spawn"}, "option-invalid", "ddp"),
        ({"mode": "minimum"}, "option-invalid", 'Trainer(mode="min")'),
        ({"patience": 3}, "option-contradicted", 'Trainer(monitor="val_loss", patience=3)'),
        ({"gradient_clip_val": -1.0}, "option-invalid", "Trainer(gradient_clip_val=1.0)"),
        (
            {"gradient_clip_algorithm": "nrom"},
            "option-invalid",
            'Trainer(gradient_clip_algorithm="norm")',
        ),
        ({"limit_train_batches": 1.5}, "option-invalid", "Trainer(limit_train_batches=1.0)"),
        ({"val_check_interval": 0}, "option-invalid", "Trainer(limit_val_batches=0)"),
        ({"default_root_dir": "x"}, "option-contradicted", "Trainer(run_dir=...)"),
        ({"accumulate_grad_batches": 0}, "option-invalid", "Trainer(accumulate_grad_batches=1)"),
        ({"logger": 3}, "option-invalid", "Trainer(logger="),
        (
            {"callbacks": [object()]},
            "option-invalid",
            "def on_train_epoch_end(self, trainer, task): ...",
        ),
        (
            {"callbacks": [SimpleNamespace(on_train_epoch_ends=print)]},
            "option-invalid",
            "def on_train_epoch_end(self, trainer, task): ...",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_argument_is_refused_with_what_to_write(options, name, fix):
    finding = refusal(UsageError, trainer, **options)
    assert finding.name == name
    assert fix in finding.fix


def test_a_fit_without_an_end():
    with pytest.raises(UsageError, match=r"max_epochs=None is not a number, nor is max_steps"):
        trainer(max_epochs=None).fit(Task(), loader())


class Named:
    """Tasks that lack something, or have too much."""

    class NoStep(Module):
        def trainig_step(self, batch, batch_idx): ...

    class NoOptimizer(Module):
        def training_step(self, batch, batch_idx): ...

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
            self.log("x", 1.0, reduce_fx="median")

    class Misspelt(Task):
        def on_train_epoch_ended(self): ...

    class AfterValidation(Task):
        def on_validation_end(self):
            self.log("x", 1.0)

    class SchedulerBeside(Task):
        def configure_optimizers(self):
            return {"optimizer": super().configure_optimizers(), "scheduler": None}

    class IntervalBeside(Task):
        def configure_optimizers(self):
            return {
                "optimizer": super().configure_optimizers(),
                "lr_scheduler": None,
                "interval": "step",
            }

    class Swapped(Task):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            return [optimizer], [optimizer]

    class Compiled(Task):
        _compiled_call_impl = staticmethod(
            print
        )  # as after task.compile(), whose import takes seconds

    class Outside(Task):
        def on_train_start(self):
            self.log("x", 1.0)


@pytest.mark.parametrize(
    ("task", "what"),
    [
        ("NoStep", "NoStep has no training_step; is trainig_step meant to be it?"),
        ("NoOptimizer", "NoOptimizer has no configure_optimizers"),
        ("Old", "Old.training_epoch_end would never be called by this Trainer"),
        ("NoLoss", "training_step returned a dict with lss, and no loss"),
        ("Nothing", "training_step returned NoneType, and no loss"),
        ("NoneToOptimize", "configure_optimizers returned NoneType"),
        ("Scheduler", "lr_scheduler has an unknown key 'schduler'"),
        ("Vector", r"rows is a Tensor of shape \(4, 4\) and not a number"),
        ("Text", "text is a str and not a number"),
        ("Option", "log has no option progbar"),
        ("Neither", "on_step=False and on_epoch=False leave nothing to log"),
        ("Greatest", "reduce_fx='median' is not one of mean, sum, max, min"),
        ("Outside", "there is no current epoch or evaluation that it could belong to"),
        ("Misspelt", "Misspelt.on_train_epoch_ended would never be called by this Trainer"),
        ("AfterValidation", "there is no current epoch or evaluation that it could belong to"),
        ("SchedulerBeside", "configure_optimizers returned has an unknown key 'scheduler'"),
        (
            "IntervalBeside",
            "configure_optimizers returned has a key 'interval', which belongs to the scheduler",
        ),
        ("Swapped", "lr_scheduler is of type SGD"),
        ("Compiled", "the task itself is compiled"),
    ],
)
def test_a_task_that_does_not_fit_is_refused(task, what):
    with pytest.raises(UsageError, match=what) as caught:
        trainer(max_epochs=1, enable_checkpointing=False).fit(
            getattr(Named, task)(), loader(), loader(4)
        )
    assert caught.value.finding.fix


@pytest.mark.parametrize(
    ("task", "fix"),
    [
        ("Misspelt", "def on_train_epoch_end(self, ...): ..."),
        ("SchedulerBeside", '"lr_scheduler": ...'),
        ("IntervalBeside", '"lr_scheduler": {"scheduler": scheduler, "interval": \'step\'}'),
    ],
)
def test_what_to_write_instead(task, fix):
    finding = refusal(UsageError, trainer(max_epochs=1).fit, getattr(Named, task)(), loader())
    assert finding.fix == fix


def test_what_is_no_hook_is_no_misspelt_one():
    class Mine(Task):
        on_gpu = False

        @property
        def on_cpu(self):
            return True

    task = Mine()
    trainer(max_epochs=1, enable_checkpointing=False).fit(task, loader())
    assert len(task.seen) == 5


def test_a_log_after_a_test():
    class Logs:
        def on_test_end(self, trainer, task):
            trainer.log("x", 1.0)

    with pytest.raises(
        UsageError, match="there is no current epoch or evaluation that it could belong to"
    ):
        trainer(callbacks=Logs()).test(Task(), loader(4))


def test_a_data_object_of_lightnings_is_taken_for_what_it_has_itself():
    base = type(
        "DataHooks",
        (),
        {"__module__": "lightning.pytorch", "on_after_batch_transfer": lambda *given: None},
    )
    task = Task()
    trainer(max_epochs=1).fit(
        task, type("Mine", (base,), {"train_dataloader": lambda self: loader()})()
    )
    assert len(task.seen) == 5


# Nothing to train on


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("limit_train_batches", lambda made: made.fit(Task(), loader(), loader())),
        ("limit_val_batches", lambda made: made.fit(Task(), loader(), loader())),
        ("limit_val_batches", lambda made: made.validate(Task(), loader())),
        ("limit_test_batches", lambda made: made.test(Task(), loader())),
    ],
)
def test_a_fraction_of_less_than_a_batch(name, run):
    finding = refusal(UsageError, run, trainer(max_epochs=None, max_steps=1, **{name: 0.1}))
    assert finding.what == f"{name}=0.1 is not as much as one of 5 batches"
    assert finding.fix == f"Trainer({name}=0.2)"


def test_the_least_fraction_is_one_that_works():
    for length in range(1, 3000):
        finding = refusal(UsageError, num_batches, "x", 1e-9, length)
        assert num_batches("x", float(finding.fix[len("Trainer(x=") : -1]), length) in (1, None)


@pytest.mark.parametrize("given", [loader(0), loader(3, drop_last=True)])
def test_no_batch_to_train_on(given):
    finding = refusal(UsageError, trainer(max_epochs=None, max_steps=1).fit, Task(), given)
    assert finding.what == "the loader for train has no batch"
    assert "drop_last" in finding.fix


def test_no_batch_and_no_end():
    with pytest.raises(UsageError, match="limit_train_batches=0 makes no step"):
        trainer(max_epochs=None, max_steps=1, limit_train_batches=0).fit(Task(), loader())


def test_a_validation_without_a_task():
    with pytest.raises(UsageError, match="there is no task"):
        trainer().validate()


def test_lightnings_own_are_refused_with_what_to_write():
    lightning = type(
        "LightningModule", (nn.Module,), {"__module__": "lightning.pytorch.core.module"}
    )
    stopping = type(
        "EarlyStopping", (), {"__module__": "lightning.pytorch.callbacks.early_stopping"}
    )
    finding = refusal(UsageError, trainer().fit, type("Mine", (lightning,), {})(), loader())
    assert finding.fix == "class Mine(paceline.Module)"
    finding = refusal(UsageError, trainer, callbacks=[stopping()])
    assert finding.fix == "from paceline.callbacks import EarlyStopping"


# Ranks of its own


@pytest.fixture
def script(monkeypatch, tmp_path):
    """A script that this process seems to run; returns what it is replaced by."""
    calls = []
    path = tmp_path / "train.py"
    path.write_text("")
    monkeypatch.setattr(start.os, "execv", lambda program, command: calls.append(command))
    monkeypatch.setattr(start.sys, "argv", ["train.py", "--lr", "1"])
    monkeypatch.setitem(
        start.sys.modules, "__main__", SimpleNamespace(__file__=str(path), __spec__=None)
    )
    return calls


def test_several_devices_start_the_script_anew(script, tmp_path, capsys):
    with pytest.raises(UsageError):  # the replacement does not take place here
        trainer(devices=2)
    words = ("run", "--nproc-per-node", "2", "--standalone", str(tmp_path / "train.py"))
    assert script == [own_process.command(*words, "--lr", "1")]
    assert (
        "Trainer(devices=2) starts its ranks with: paceline run --nproc-per-node 2"
        in capsys.readouterr().err
    )


def test_a_module_is_started_anew_as_a_module(script, monkeypatch):
    main = SimpleNamespace(__file__="x", __spec__=SimpleNamespace(name="project.train.__main__"))
    monkeypatch.setitem(start.sys.modules, "__main__", main)
    start.start_ranks(3, 1)
    assert script[0][5:] == ["3", "--standalone", "-m", "project.train", "--lr", "1"]


@pytest.mark.parametrize("devices", [1, "1", "auto", -1])
def test_one_device_starts_nothing(script, devices):
    trainer(devices=devices)
    assert script == []


def test_a_rank_starts_no_ranks(script, monkeypatch):
    """Whatever else the environment says: it would never end."""
    monkeypatch.setenv("PACELINE_RUN_TOKEN", "x")
    monkeypatch.setenv("PACELINE_LAUNCHER", "none")
    with pytest.raises(
        UsageError, match="devices=2 and num_nodes=1 make 2 ranks, and this run was started with 1"
    ):
        trainer(devices=2)
    assert script == []


def test_in_a_notebook(monkeypatch):
    monkeypatch.setitem(start.sys.modules, "__main__", SimpleNamespace(__spec__=None))
    finding = refusal(UsageError, trainer, devices=2)
    assert finding.fix == "put it into a function: paceline.launch(train, nproc_per_node=2)"
