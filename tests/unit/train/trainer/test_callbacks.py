"""The ready-made callbacks: what they keep, when they stop, and what they refuse."""

import math
import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import paceline
from paceline.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelSummary,
    RichProgressBar,
    StochasticWeightAveraging,
    Timer,
    TQDMProgressBar,
    WeightAveraging,
)
from paceline.errors import UsageError
from unit.train.trainer.training import (  # noqa: F401  the fixtures are used by being here
    Task,
    finding,
    first_optimizer,
    loader,
    no_signals,
    rows,
    trainer,
    unlaunched,
    weights,
)


def scripted(losses):
    """A task whose val_loss in each epoch is given."""

    class Scripted(Task):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", losses[self.current_epoch])

    return Scripted()


# EarlyStopping


@pytest.mark.parametrize(
    ("losses", "options", "epochs", "reason"),
    [
        ([5, 4, 3, 2, 1, 0], {}, 6, None),
        ([5, 4, 4, 4, 4, 4], {"patience": 2}, 4, "val_loss did not improve on 4 in 2 checks"),
        ([5, 4, 3.9, 3.8, 3.7, 3], {"patience": 2, "min_delta": 0.5}, 4, "did not improve on 4"),
        ([5, 6, 7, 6, 6, 6], {"mode": "max", "patience": 2}, 5, "did not improve on 7"),
        ([5, math.nan, 3, 2, 1, 0], {}, 2, "val_loss = nan is not finite"),
        ([5, math.nan, 3, 2, 1, 0], {"check_finite": False}, 6, None),
        ([5, 4, 0.5, 0.4, 0.3, 0], {"stopping_threshold": 1.0}, 3, "val_loss = 0.5 has passed 1.0"),
        ([5, 4, 90, 3, 2, 1], {"divergence_threshold": 50}, 3, "val_loss = 90 is worse than 50"),
    ],
)
def test_early_stopping(losses, options, epochs, reason):
    stop, task = EarlyStopping("val_loss", **options), scripted(losses)
    made = trainer(max_epochs=6, callbacks=[stop])
    made.fit(task, loader(4), loader(4))
    assert len(task.seen) == epochs
    assert made.early_stopping_callback is stop
    if reason is None:
        assert stop.stopping_reason_message is None
    else:
        assert reason in stop.stopping_reason_message
        assert stop.stopped_epoch == epochs - 1


def test_early_stopping_between_epochs_ends_after_the_validation():
    class Worse(Task):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", float(self.global_step))

    task = Worse()
    stop = EarlyStopping("val_loss", patience=1)
    trainer(max_epochs=3, val_check_interval=2, callbacks=[stop]).fit(task, loader(), loader(4))
    assert len(task.seen) == 4


def test_early_stopping_continues_its_count():
    for epochs in (2, 9):
        stop, task = EarlyStopping("val_loss", patience=3), scripted([1] * 9)
        trainer(max_epochs=epochs, callbacks=[stop], resume=epochs > 2).fit(
            task, loader(4), loader(4)
        )
    assert stop.stopped_epoch == 3


def test_a_metric_that_is_never_logged():
    with pytest.raises(UsageError, match="the metric 'val_los' was never logged") as caught:
        trainer(callbacks=[EarlyStopping("val_los")]).fit(Task(), loader(4), loader(4))
    assert finding(caught).fix == 'monitor="val_loss"'
    quiet = EarlyStopping("val_los", strict=False)
    trainer(callbacks=[quiet]).fit(Task(), loader(4), loader(4))
    assert quiet.wait_count == 0


# ModelCheckpoint


def names(folder="kept"):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["epoch=3-step=4.ckpt"]),
        ({"monitor": "val_loss"}, ["epoch=1-step=2.ckpt"]),
        ({"monitor": "val_loss", "mode": "max"}, ["epoch=2-step=3.ckpt"]),
        (
            {"monitor": "val_loss", "save_top_k": 2, "filename": "{epoch:02d}-{val_loss:.1f}"},
            ["epoch=01-val_loss=1.0.ckpt", "epoch=03-val_loss=2.0.ckpt"],
        ),
        (
            {"save_top_k": -1, "filename": "e{epoch}", "auto_insert_metric_name": False},
            ["e0.ckpt", "e1.ckpt", "e2.ckpt", "e3.ckpt"],
        ),
        ({"save_top_k": 0, "save_last": True}, ["last.ckpt"]),
        ({"every_n_epochs": 2, "save_top_k": -1}, ["epoch=1-step=2.ckpt", "epoch=3-step=4.ckpt"]),
        ({"every_n_train_steps": 3, "save_last": "link"}, ["epoch=2-step=3.ckpt", "last.ckpt"]),
        ({"train_time_interval": timedelta(microseconds=1)}, ["epoch=3-step=4.ckpt"]),
    ],
)
def test_checkpoints_and_their_names(options, expected):
    best = ModelCheckpoint("kept", **options)
    made = trainer(max_epochs=4, callbacks=[best])
    made.fit(scripted([3, 1, 4, 2]), loader(4), loader(4))
    assert names() == expected
    assert made.checkpoint_callback is best
    if options.get("save_top_k") != 0:
        assert os.path.basename(best.best_model_path) in expected
        assert weights(Task.load_from_checkpoint(best.best_model_path))


def test_several_monitors_have_files_of_their_own():
    first, second = (
        ModelCheckpoint("kept", monitor="val_loss", mode=mode) for mode in ("min", "max")
    )
    trainer(max_epochs=3, callbacks=[first, second]).fit(scripted([1, 2, 0]), loader(4), loader(4))
    assert names() == ["epoch=1-step=2.ckpt", "epoch=2-step=3.ckpt"]
    assert (float(first.best_model_score), float(second.best_model_score)) == (0.0, 2.0)


def test_the_best_of_a_model_checkpoint_is_evaluated():
    best, task = ModelCheckpoint("kept", monitor="val_loss"), scripted([3, 1, 4])
    made = trainer(max_epochs=3, callbacks=[best])
    made.fit(task, loader(4), loader(4))
    made.test(dataloaders=loader(4))
    assert weights(task) == weights(Task.load_from_checkpoint(best.best_model_path))
    assert made.ckpt_path == best.best_model_path


def test_weights_alone_are_one_file():
    best = ModelCheckpoint("kept", save_weights_only=True)
    task = Task()
    trainer(max_epochs=1, callbacks=[best]).fit(task, loader(4))
    assert os.path.isfile(best.best_model_path)
    assert weights(Task.load_from_checkpoint(best.best_model_path)) == weights(task)


def test_without_a_model_checkpoint_the_run_folder_has_the_best():
    made, task = trainer(max_epochs=3, monitor="val_loss"), scripted([3, 1, 4])
    made.fit(task, loader(4), loader(4))
    kept = made.checkpoint_callback
    assert float(kept.best_model_score) == 1.0
    assert kept.best_model_path != kept.last_model_path
    assert weights(Task.load_from_checkpoint(kept.last_model_path)) == weights(task)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"save_on_exception": True}, "ModelCheckpoint(save_on_exception=...)"),
        ({"save_top_k": 3}, "ModelCheckpoint"),
        ({"every_n_epochs": 1, "every_n_train_steps": 5}, "ModelCheckpoint"),
        ({"mode": "least"}, "ModelCheckpoint(mode=...)"),
    ],
)
def test_a_model_checkpoint_that_contradicts_itself(options, where):
    with pytest.raises(UsageError) as caught:
        ModelCheckpoint("kept", **options)
    assert finding(caught).where == where


def test_a_model_checkpoint_without_checkpointing():
    with pytest.raises(UsageError, match="enable_checkpointing=False, and there is a Model"):
        trainer(callbacks=[ModelCheckpoint("kept")], enable_checkpointing=False)


# Rates, time, display


def test_learning_rates_are_logged():
    class Decays(Task):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.5)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]

    rates = LearningRateMonitor(log_momentum=True)
    trainer(max_epochs=3, callbacks=[rates]).fit(Decays(), loader(4))
    assert rates.lrs == {"lr-SGD": [1.0, 0.5, 0.25], "lr-SGD-momentum": [0.5] * 3}
    assert [row["lr-SGD"] for row in rows() if row["lr-SGD"]] == ["1.0", "0.5", "0.25"]


def test_learning_rates_without_a_logger():
    with pytest.raises(UsageError, match="there is no logger to log learning rates to"):
        trainer(callbacks=[LearningRateMonitor()], logger=False).fit(Task(), loader(4))


def test_a_timer_measures_and_ends_after_an_epoch():
    timer, task = Timer(timedelta(microseconds=1), interval="epoch"), Task()
    trainer(max_epochs=5, callbacks=[timer]).fit(task, loader())
    assert len(task.seen) == 5
    assert timer.time_elapsed() == timer.end_time() - timer.start_time() > 0
    assert timer.time_remaining() < 0


def test_bars_are_options_of_the_trainers_own():
    for bar in (TQDMProgressBar(refresh_rate=0), RichProgressBar(0)):
        made = trainer(callbacks=[bar], enable_progress_bar=True)
        made.fit(Task(), loader(4))
        assert made.shows_progress is False
    with pytest.raises(UsageError, match="theme='x' is not an option of this bar"):
        RichProgressBar(theme="x")


def test_a_summary_of_the_model(capsys):
    trainer(max_epochs=1, enable_model_summary=True).fit(Task(), loader(4))
    assert "Linear" in capsys.readouterr().err
    ModelSummary(0).on_fit_start(SimpleNamespace(is_global_zero=True), Task())


def test_a_function_that_is_no_hook():
    with pytest.raises(UsageError) as caught:
        LambdaCallback(on_train_epoch_ended=print)
    assert finding(caught).fix == "LambdaCallback(on_train_epoch_end=...)"


# Averages


def recorded(callback, epochs=4, **options):
    """Return the weights after each step, those at each epoch's start, and those at the end."""
    after, starts = [], []
    records = LambdaCallback(
        on_train_batch_end=lambda trainer, task, *rest: after.append(
            task.net.weight.detach().clone()
        ),
        on_train_epoch_start=lambda trainer, task: starts.append(task.net.weight.detach().clone()),
    )
    task = Task()
    trainer(max_epochs=epochs, callbacks=[records, callback], **options).fit(task, loader(8))
    return after, starts, task.net.weight.detach()


def test_weights_are_averaged_over_steps():
    after, _, end = recorded(WeightAveraging())
    assert torch.allclose(end, torch.stack(after).mean(0), atol=1e-12)


def test_weights_are_averaged_exponentially():
    after, _, end = recorded(EMAWeightAveraging(decay=0.75))
    expected = after[0]
    for value in after[1:]:
        expected = 0.75 * expected + 0.25 * value
    assert torch.allclose(end, expected, atol=1e-12)


def test_weights_of_the_last_epochs_are_averaged():
    _, starts, end = recorded(StochasticWeightAveraging(0.01, swa_epoch_start=0.5))
    assert torch.allclose(end, torch.stack(starts[1:]).mean(0), atol=1e-12)


@pytest.mark.parametrize("number", [0, -1, 2.5])
def test_averages_are_updated_every_whole_number_of_steps(number):
    with pytest.raises(UsageError, match="at least 1"):
        EMAWeightAveraging(update_every_n_steps=number)


def test_averages_continue_from_a_checkpoint():
    for make in (
        lambda: EMAWeightAveraging(decay=0.75),
        lambda: StochasticWeightAveraging(0.01, swa_epoch_start=1),
    ):
        name = type(make()).__name__
        _, _, expected = recorded(make(), run_dir=f"whole-{name}")
        recorded(make(), epochs=2, run_dir=name)
        _, _, end = recorded(make(), run_dir=name, resume=True)
        assert torch.allclose(end, expected, atol=1e-12), name


def test_batch_norm_is_not_averaged_over_epochs():
    class Norms(Task):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

    with pytest.raises(UsageError, match="the statistics of batch norm"):
        trainer(callbacks=[StochasticWeightAveraging(0.1)]).fit(Norms(), loader(8))


def test_two_callbacks_with_one_name_of_their_state():
    class Counts(paceline.Callback):
        def on_train_start(self, trainer, task): ...

        def state_dict(self):
            return {"count": 1}

    with pytest.raises(UsageError, match="two callbacks have the state_key"):
        trainer(callbacks=[Counts(), Counts()]).fit(Task(), loader(4))
