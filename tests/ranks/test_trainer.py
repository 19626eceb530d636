"""The Trainer on real gloo ranks: what is trained, logged and saved does not depend on their number."""

import contextlib
import csv
import io
import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from paceline import DataModule, Module, Trainer
from paceline.errors import PacelineError
from paceline.train.session import stopping

WORLDS = (1, 2, 3, 4)


def regression(length, *, seed=7):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.square().sum(1, keepdim=True))


class Task(Module):
    """Calls itself in training and its net in validation; both must work under DDP."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(
            5 if not torch.distributed.is_initialized() else torch.distributed.get_rank() + 5
        )
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        prediction = self.net(x)
        self.log("val_loss", nn.functional.mse_loss(prediction, y))
        self.log("good", (prediction - y).abs().lt(4.0).double().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def trainer(folder, **options):
    defaults = {"max_epochs": 2, "seed": 1, "enable_progress_bar": False, "log_every_n_steps": 1}
    return Trainer(run_dir=folder, **{**defaults, **options})


def weights(task):
    whole = [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in task.parameters()
    ]
    return [each.tolist() for each in whole]


def fit(folder, options, length=41, val_length=7, batch_size=8):
    task = Task()
    made = trainer(folder, **options)
    made.fit(
        task,
        DataLoader(regression(length), batch_size, shuffle=True),
        DataLoader(regression(val_length, seed=8), 3),
    )
    return weights(task), {name: value.item() for name, value in made.callback_metrics.items()}


def table(folder):
    with Path(folder, "metrics.csv").open(newline="") as file:
        return [
            {name: float(cell) for name, cell in row.items() if cell}
            for row in csv.DictReader(file)
        ]


def flat(nested):
    return (
        [each for part in nested for each in flat(part)] if isinstance(nested, list) else [nested]
    )


# 41 = 5 * 8 + 1: the last batch is empty on all ranks but one. Of 7 samples in batches of 3 the last is one of one.
@pytest.mark.parametrize("accumulate", [1, 4])
def test_curves_and_means_agree(ranks, tmp_path, accumulate):
    expected = None
    for world_size in WORLDS:
        folder = tmp_path / str(world_size)
        results = ranks.run(
            fit,
            str(folder),
            {"accumulate_grad_batches": accumulate, "gradient_clip_val": 1.0},
            world_size=world_size,
        )
        assert all(each == results[0] for each in results), "ranks must not drift apart by one bit"
        rows = table(folder)
        assert len(rows) == 2 * -(-6 // accumulate) + 2
        assert {"loss_epoch", "val_loss", "good", "epoch", "step"} == set(rows[-1])
        expected = expected or (results[0], rows)
        (expected_weights, expected_metrics), expected_rows = expected
        found_weights, metrics = results[0]
        assert flat(found_weights) == pytest.approx(flat(expected_weights), abs=1e-10, rel=0)
        assert metrics == pytest.approx(expected_metrics, abs=1e-10, rel=0)
        for row, other in zip(rows, expected_rows, strict=True):
            assert row == pytest.approx(other, abs=1e-10, rel=0)


def test_fsdp_agrees_with_ddp(ranks, tmp_path):
    (expected, metrics), _ = ranks.run(fit, str(tmp_path / "ddp"), {}, world_size=2)
    for found, found_metrics in ranks.run(
        fit, str(tmp_path / "fsdp"), {"strategy": "fsdp"}, world_size=2
    ):
        assert flat(found) == pytest.approx(flat(expected), abs=1e-8, rel=0)
        assert found_metrics == pytest.approx(metrics, abs=1e-8, rel=0)


def validate(length, batch_size):
    class Counts(Task):
        def validation_step(self, batch, batch_idx):
            self.log("mean", batch[0].mean())
            self.log("rows", len(batch[0]), reduce_fx="sum")

    ((values),) = trainer("unused", logger=False).validate(
        Counts(), DataLoader(regression(length), batch_size)
    )
    return values


@pytest.mark.parametrize(("length", "batch_size"), [(1, 1), (2, 3), (5, 2), (13, 4), (17, 5)])
def test_evaluation_is_exact(ranks, length, batch_size):
    mean = regression(length).tensors[0].mean().item()
    for world_size in WORLDS:
        for values in ranks.run(validate, length, batch_size, world_size=world_size):
            assert values == {"mean": pytest.approx(mean, abs=1e-14), "rows": length}


def interrupted(folder, stop_at):
    """Train until a stop is asked for, on one rank only."""

    class Stop:
        def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
            if trainer.global_step == stop_at and trainer.global_rank == trainer.world_size - 1:
                trainer.session.stop()

    every_s, stopping.MEETING_EVERY_S = stopping.MEETING_EVERY_S, 1e-6  # ranks agree at each step
    try:
        fit(folder, {"callbacks": [Stop()]})
    except SystemExit as stop:
        return stop.code
    finally:
        stopping.MEETING_EVERY_S = every_s
    return None


def test_a_stop_and_another_number_of_ranks_change_nothing(ranks, tmp_path):
    """Weights, and the means of the epoch that both runs share."""
    ((expected, metrics),) = ranks.run(fit, str(tmp_path / "whole"), {}, world_size=1)
    codes = ranks.run(interrupted, str(tmp_path / "run"), 8, world_size=3)
    assert codes == [75] * 3
    for found, found_metrics in ranks.run(
        fit, str(tmp_path / "run"), {"resume": True}, world_size=2
    ):
        assert flat(found) == pytest.approx(flat(expected), abs=1e-10, rel=0)
        assert found_metrics == pytest.approx(metrics, abs=1e-10, rel=0)
    steps = [int(row["step"]) for row in table(tmp_path / "run") if "loss_step" in row]
    assert steps == [*range(1, 13)]


def names_that_differ():
    class Differs(Task):
        def training_step(self, batch, batch_idx):
            if self.trainer.is_global_zero:
                self.log("alone", 1.0)
            return super().training_step(batch, batch_idx)

    try:
        trainer("unused", logger=False, enable_checkpointing=False).fit(
            Differs(), DataLoader(regression(8), 4)
        )
    except PacelineError as error:
        return error.finding.name, error.finding.what
    return None


def test_ranks_that_log_other_names_are_told_and_do_not_hang(ranks):
    found = ranks.run(names_that_differ, world_size=3)
    assert found[0] == (
        "collective-mismatch",
        "rank 0 logged other names than the other ranks: alone, loss",
    )
    assert found[2] == (
        "collective-mismatch",
        "rank 2 logged other names than the other ranks: loss",
    )


def needs_rows(batch_size):
    class Needs(Task):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:  # on both ranks, so that none waits for the other
                raise ValueError("something else" if len(batch[0]) == 1 else "no rows")
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            batch[0].view(len(batch[0]), -1)  # raises with zero rows, as torchmetrics does
            super().validation_step(batch, batch_idx)

    made = trainer("unused", logger=False, enable_checkpointing=False)
    try:
        made.fit(Needs(), DataLoader(regression(9), batch_size), DataLoader(regression(7), 3))
    except PacelineError as error:
        return error.finding.name, error.finding.what.partition(":")[0]
    except ValueError as error:
        return str(error)
    return made.callback_metrics["val_loss"].item()


def test_what_cannot_do_with_zero_rows(ranks):
    """In evaluation it is not asked to; in training, where every rank is needed, it gets a row."""
    (expected,) = ranks.run(needs_rows, 9, world_size=1)
    assert ranks.run(needs_rows, 9, world_size=2) == [pytest.approx(expected, abs=1e-12)] * 2
    assert ranks.run(needs_rows, 4, world_size=2) == ["something else"] * 2


def validate_one(folder):
    class Meter:
        total = 0.0

        def compute(self):
            total = torch.tensor(self.total)
            if torch.distributed.is_initialized():
                torch.distributed.all_reduce(total)
            return total

        def reset(self):
            self.total = 0.0

    class Needs(Task):
        def __init__(self):
            super().__init__()
            self.meter = Meter()

        def validation_step(self, batch, batch_idx):
            self.log("first", batch[0][0].sum())  # raises with zero rows, as torchmetrics does
            self.log("quiet", len(batch[0]), reduce_fx="sum", prog_bar=True, logger=False)
            self.meter.total += float(batch[0][0].sum())
            self.log("meter", self.meter)

        def on_validation_epoch_end(self):
            self.log("after", 2.0)

    made = trainer(folder, monitor="first", enable_checkpointing=False)
    made.fit(Needs(), DataLoader(regression(8), 4), DataLoader(regression(1, seed=8), 1))
    values = {
        name: value.item() for name, value in made.callback_metrics.items() if "loss" not in name
    }
    return values, made.validate()


def test_a_rank_without_any_row_is_left_out_of_an_evaluation(ranks, tmp_path):
    """And takes part in its means, also in those of an object that computes its own together with the other ranks."""
    first = regression(1, seed=8).tensors[0].sum().item()
    values = {"first": first, "meter": pytest.approx(first, abs=1e-6), "after": 2.0}
    for world_size in WORLDS:
        for found in ranks.run(
            validate_one, str(tmp_path / str(world_size)), world_size=world_size
        ):
            assert found == ({**values, "quiet": 1.0}, [values])
    assert {"first", "meter", "after"} < set(table(tmp_path / "4")[-1])


def should_stop():
    class Stop:
        def on_train_epoch_end(self, trainer, task):
            trainer.should_stop = trainer.global_rank == 1

    made = trainer(
        "unused", max_epochs=5, logger=False, enable_checkpointing=False, callbacks=[Stop()]
    )
    made.fit(Task(), DataLoader(regression(8), 4))
    return made.current_epoch


def test_one_rank_is_enough_to_stop(ranks):
    assert ranks.run(should_stop, world_size=2) == [0, 0]


def split_data(folder):
    class Split(DataModule):
        def prepare_data(self):
            Path(folder, f"prepared-{os.getpid()}").touch()

        def setup(self, stage):
            assert len(list(Path(folder).glob("prepared-*"))) == 1
            self.train, self.val = random_split(regression(20), [12, 8])

        def train_dataloader(self):
            return DataLoader(self.train, 4)

    data = Split()
    made = trainer(folder, max_epochs=1, seed=None, logger=False, enable_checkpointing=False)
    torch.manual_seed(made.global_rank)
    made.fit(Task(), data)
    return data.train.indices


class Divides(DataModule):
    """As the data module of lightning-hydra-template."""

    def setup(self, stage=None):
        self.batch_size_per_device = 12 // self.trainer.world_size

    def train_dataloader(self):
        return DataLoader(regression(24), batch_size=self.batch_size_per_device)

    def val_dataloader(self):
        return DataLoader(regression(4), batch_size=4 // self.trainer.num_devices)


def divided(per_rank):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        made = trainer("unused", logger=False, per_rank_batch_size=per_rank)
        assert made.world_size == made.session.world_size
        made.fit(Task(), Divides())
    assert "reads trainer.num_devices" not in said.getvalue(), "one line is enough"
    return said.getvalue().count(
        "setup reads trainer.world_size, and a batch size is that of all ranks together"
    )


def test_data_that_divides_its_batch_size_is_told_that_it_is_global(ranks):
    assert ranks.run(divided, False, world_size=1) == [0]
    assert ranks.run(divided, False, world_size=2) == [1, 0], "once, on rank 0"
    assert ranks.run(divided, True, world_size=2) == [0, 0]


def test_data_is_prepared_once_and_split_alike(ranks, tmp_path):
    first, *others = ranks.run(split_data, str(tmp_path), world_size=3)
    assert others == [first, first]


def other_devices():
    try:
        trainer("unused", devices=2)
    except PacelineError as error:
        return error.finding.name, error.finding.what


def test_a_run_of_another_size_is_refused(ranks):
    found = ranks.run(other_devices, world_size=3, launched=True)
    what = "devices=2 and num_nodes=1 make 2 ranks, and this run was started with 3"
    assert found == [("option-contradicted", what)] * 3
