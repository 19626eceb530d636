"""The Trainer in a world of one, without processes; ``tests/ranks`` has several, ``tests/launch`` real starts."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import paceline
from paceline import DataModule, Module, Trainer
from paceline.errors import UsageError
from refusals import refusal
from unit.train.trainer.training import (
    Stops,
    Task,
    loader,
    loss_of,
    mse,
    rows,
    scripted,
    starts_of_validations,
    trainer,
    weights,
)


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
    assert task.seen == [
        (epoch, batch, 5 * epoch + batch) for epoch in range(3) for batch in range(5)
    ]


def test_accumulation_and_clipping():
    task, by_hand = Task(), Task()
    made = trainer(
        max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=0.1, enable_checkpointing=False
    )
    made.fit(task, loader())
    assert made.global_step == 3  # 2 + 2 + 1 batches
    optimizer = by_hand.configure_optimizers()
    for x, y in loader(batch_size=8):
        mse(by_hand.net(x), y).backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(task.net.weight.cpu(), by_hand.net.weight, atol=1e-12)


def test_clipping_by_value():
    task = Task(lr=1.0)
    before = task.net.weight.detach().clone()
    options = {"gradient_clip_val": 1e-3, "gradient_clip_algorithm": "value", "max_steps": 1}
    trainer(**options, enable_checkpointing=False).fit(task, loader())
    assert (task.net.weight.cpu() - before).abs().max() <= 1e-3 + 1e-12


@pytest.mark.parametrize(
    ("options", "steps"), [({"max_steps": 7}, 7), ({"max_steps": 7, "max_epochs": None}, 7)]
)
def test_max_steps(options, steps):
    made, task = trainer(**options), Task()
    made.fit(task, loader())
    assert (made.global_step, len(task.seen)) == (steps, steps)


@pytest.mark.parametrize(
    ("limit", "batches"), [(2, 2), (0.4, 2), (1.0, 5), (1, 1), (0, 0), (99, 5)]
)
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
    assert (
        weights(copy.deepcopy(task)) == weights(pickle.loads(pickle.dumps(task))) == weights(task)
    )
    assert copy.deepcopy(task)._trainer is None


def test_mixed_precision_reaches_training_and_validation():
    kinds = []

    class Mixed(Task):
        def training_step(self, batch, batch_idx):
            kinds.append((self.net(batch[0].float()).dtype, self(batch[0].float()).dtype))
            return super().training_step([part.float() for part in batch], batch_idx)

        def validation_step(self, batch, batch_idx):
            kinds.append(self.net(batch[0].float()).dtype)

    trainer(precision="bf16", max_steps=1, enable_checkpointing=False).fit(
        Mixed().float(), loader(), loader(4)
    )
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

    made = trainer(
        max_epochs=1, accumulate_grad_batches=2, callbacks=Recorder(), enable_checkpointing=False
    )
    made.fit(Hooked(), loader(8), loader(4))
    assert calls == [
        *(
            "on_fit_start",
            "on_train_start",
            "on_train_batch_start 0",
            "on_after_backward",
            "on_train_batch_end 0",
        ),
        *(
            "on_train_batch_start 1",
            "on_after_backward",
            "on_before_optimizer_step",
            "on_train_batch_end 1",
        ),
        *("task: on_validation_start", "on_validation_start", "on_validation_end"),
        *("task: on_train_epoch_end", "on_train_epoch_end", "on_fit_end"),
    ]


def test_should_stop_ends_after_the_epoch():
    task = Task()
    trainer(max_epochs=5, callbacks=[Stops()]).fit(task, loader())
    assert len(task.seen) == 5


# Validation and test


def test_validate_and_test_return_exact_means():
    task, made = Task(), trainer()
    made.fit(task, loader(), loader(7))
    expected = loss_of(task, 7)
    assert made.validate(task, loader(7)) == [{"val_loss": pytest.approx(expected, abs=1e-14)}]
    (values,) = made.test(dataloaders=loader(7))
    assert values == {
        "test_loss": pytest.approx(expected, abs=1e-14),
        "rows": pytest.approx((4 * 4 + 3 * 3) / 7),
    }


def test_validate_needs_no_fit():
    task = Task()
    ((_, value),) = trainer().validate(task, loader(7))[0].items()
    assert value == pytest.approx(loss_of(task, 7), abs=1e-14)


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
    assert values["test_loss"] == pytest.approx(loss_of(task), abs=1e-14)


@pytest.mark.parametrize(
    ("interval", "validations"), [(None, 1), (1.0, 1), (2, 3), (0.5, 3), (5, 1)]
)
def test_val_check_interval(interval, validations):
    starts, callback = starts_of_validations(SimpleNamespace)
    made = trainer(
        max_epochs=1, val_check_interval=interval, callbacks=[callback], enable_checkpointing=False
    )
    made.fit(Task(), loader(), loader(4))
    assert len(starts) == validations
    assert starts[-1] == 5


def test_check_val_every_n_epoch_and_sanity_checks():
    starts, callback = starts_of_validations(SimpleNamespace)
    made = trainer(
        max_epochs=4, check_val_every_n_epoch=2, num_sanity_val_steps=1, callbacks=[callback]
    )
    made.fit(Task(), loader(), loader(8))
    assert starts == [0, 10, 20]


def test_validations_in_between_are_of_epochs_that_have_one():
    starts, callback = starts_of_validations(SimpleNamespace)
    made = trainer(
        max_epochs=4, check_val_every_n_epoch=2, val_check_interval=3, callbacks=[callback]
    )
    made.fit(Task(), loader(), loader(8))
    assert starts == [8, 10, 18, 20]


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
        (
            lambda task, optimizer: {"optimizer": optimizer, "lr_scheduler": half(optimizer)},
            [1, 0.5, 0.25, 0.125],
        ),
        (
            lambda task, optimizer: (
                [optimizer],
                [{"scheduler": half(optimizer), "interval": "step"}],
            ),
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
                    "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(
                        optimizer, patience=1, factor=0.5
                    ),
                    "monitor": "val_loss",
                },
            },
            [1, 1, 1, 0.5],
        ),
        (
            lambda task, optimizer: {
                "optimizer": optimizer,
                "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(
                    optimizer, patience=1, factor=0.5
                ),
                "monitor": "val_loss",
            },
            [1, 1, 1, 0.5],
        ),
    ],
    ids=[
        "optimizer",
        "list",
        "pair",
        "dict",
        "by step",
        "frequency",
        "plateau",
        "plateau beside its metric",
    ],
)
def test_configure_optimizers(configure, expected):
    assert rates(configure) == expected


def test_several_optimizers_all_step():
    class Two(Task):
        def configure_optimizers(self):
            return [
                torch.optim.SGD([self.net.weight], lr=0.1),
                torch.optim.SGD([self.net.bias], lr=0.1),
            ]

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
        trainer(
            enable_checkpointing=False,
            **{"max_steps": 4 if "max_epochs" in options else -1, **options},
        ).fit(Asks(), loader())
    assert found == [10, 6, 3, 4]


def test_a_plateau_without_its_metric():
    def configure(task, optimizer):
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val_los"},
        }

    finding = refusal(UsageError, rates, configure)
    assert finding.what.startswith("the metric 'val_los' was never logged; logged were train_loss")
    assert finding.fix == 'monitor="val_loss"'


# Early stopping, checkpoints


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
    trainer(max_epochs=6, monitor="val_loss", **{"patience": 2, **options}).fit(
        task, loader(4), loader(4)
    )
    assert len(task.seen) == epochs


def test_a_run_that_ran_out_of_patience_does_not_go_on():
    trainer(max_epochs=6, monitor="val_loss", patience=1).fit(
        scripted([1, 2, 3, 4, 5, 6]), loader(4), loader(4)
    )
    task = scripted([0] * 6)
    trainer(max_epochs=6, monitor="val_loss", patience=1, resume=True).fit(
        task, loader(4), loader(4)
    )
    assert task.seen == []


def test_a_monitor_that_is_never_logged():
    finding = refusal(UsageError, trainer(monitor="val_acc").fit, Task(), loader(), loader())
    assert finding.name == "option-invalid"
    assert finding.where == "Trainer(monitor=...)"
    assert "logged were train_loss, train_loss_epoch, val_loss" in finding.what


def test_a_limit_that_cuts_through_a_step():
    with pytest.raises(UsageError) as caught:
        trainer(limit_train_batches=3, accumulate_grad_batches=2).fit(Task(), loader())
    assert caught.value.finding.fix == "Trainer(limit_train_batches=4)"
    made = trainer(limit_train_batches=99, accumulate_grad_batches=2, max_epochs=1)
    made.fit(Task(), loader())
    assert made.global_step == 3


def test_checkpoints_are_kept_as_asked_for():
    made = trainer(max_epochs=5, monitor="val_loss", save_top_k=2)
    made.fit(scripted([1, 2, 3, 4, 5]), loader(4), loader(4))
    assert len([*made.session.run_dir.checkpoints.iterdir()]) == 4  # the two best, the two last
    trainer(enable_checkpointing=False, run_dir="none").fit(Task(), loader())
    assert not (made.session.run_dir.root.parent / "none" / "checkpoints").exists()


def test_a_checkpoint_that_is_not_there():
    finding = refusal(UsageError, trainer().fit, Task(), loader(), ckpt_path="last")
    assert finding.name == "checkpoint-missing"
