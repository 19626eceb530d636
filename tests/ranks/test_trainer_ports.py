"""What the Trainer has from Lightning, on real gloo ranks: the result does not depend on their number."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, random_split

from paceline import DataModule
from paceline.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from paceline.errors import PacelineError
from paceline.train.session import stopping
from paceline.trainer import CombinedLoader
from ranks.test_trainer import Task, flat, regression, trainer, weights

pytestmark = pytest.mark.ci

WORLDS = (1, 2, 3)


def loaders(length=24, batch_size=6, **options):
    return DataLoader(regression(length), batch_size, **options)


def agree(ranks, function, *args):
    """Return what rank 0 of one, two and three ranks returned; all ranks return the same."""
    found = []
    for world_size in WORLDS:
        results = ranks.run(function, *args, world_size=world_size)
        assert all(each == results[0] for each in results), "ranks differ"
        found.append(results[0])
    for other in found[1:]:
        assert flat(other[0]) == pytest.approx(flat(found[0][0]), abs=1e-10, rel=0)
        assert other[1:] == found[0][1:]
    return found[0]


def predicted(length, batch_size):
    class Predicts(Task):
        def predict_step(self, batch, batch_idx):
            return {"y": self(batch[0]).detach(), "x": batch[0]}

    torch.manual_seed(5)
    task = Predicts()
    made = trainer("unused", logger=False)
    nn.init.ones_(task.net[0].weight)
    nn.init.ones_(task.net[2].weight)
    nn.init.zeros_(task.net[0].bias)
    nn.init.zeros_(task.net[2].bias)
    batches = made.predict(task, loaders(length, batch_size))
    values = [[part["y"].tolist(), part["x"].tolist()] for part in batches]
    return values, [len(part["x"]) for part in batches]


@pytest.mark.parametrize(("length", "batch_size"), [(1, 4), (7, 3), (17, 5)])
def test_predictions_are_in_the_order_of_the_dataset(ranks, length, batch_size):
    values, sizes = agree(ranks, predicted, length, batch_size)
    x = [row for _, rows in values for row in rows]
    assert x == regression(length).tensors[0].tolist()
    assert sum(sizes) == length


def predicts_texts():
    class Texts(Task):
        def predict_step(self, batch, batch_idx):
            return ["a"] * len(batch[0])

    try:
        trainer("unused", logger=False).predict(Texts(), loaders())
    except PacelineError as error:
        return error.finding.what
    return None


def test_predictions_without_rows_are_refused_on_several_ranks(ranks):
    assert ranks.run(predicts_texts, world_size=1) == [None]
    expected = "predict_step returned a str for a batch with 3 rows on this rank"
    assert ranks.run(predicts_texts, world_size=2) == [expected] * 2


class Alternates(Task):
    """Two optimizers, each with a backward of its own, in each batch."""

    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        x, y = batch
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        hidden = self.net[1](self.net[0](x))
        first.zero_grad()
        self.manual_backward(hidden.square().mean())
        self.clip_gradients(first, 0.5)
        first.step()
        self.untoggle_optimizer(first)
        with self.toggled_optimizer(second):
            loss = nn.functional.mse_loss(self(x), y)
            second.zero_grad()
            self.manual_backward(loss)
            second.step()
        self.log("loss", loss, on_epoch=True)

    def configure_optimizers(self):
        first = torch.optim.SGD(self.net[0].parameters(), lr=0.05)
        return first, torch.optim.AdamW(self.net[2].parameters(), lr=0.02)


def alternates(folder):
    task, made = Alternates(), trainer(folder, max_epochs=2)
    made.fit(task, loaders(23, 5, shuffle=True))
    return [weights(task), float(made.callback_metrics["loss"])], made.global_step


def test_manual_optimization(ranks, tmp_path):
    _, steps = agree(ranks, alternates, str(tmp_path / "run"))
    assert steps == 2 * 2 * 5


class Zips(Task):
    def training_step(self, batch, batch_idx):
        (x, y), (other, _) = batch["a"], batch["b"]
        return nn.functional.mse_loss(self(x), y) + 0.1 * self(other).square().mean()


def zips(folder, mode, size):
    task = Zips()
    made = trainer(folder, enable_checkpointing=False)
    pair = {"a": loaders(24, 6, shuffle=True), "b": loaders(size, 6)}
    try:
        made.fit(task, CombinedLoader(pair, mode))
    except PacelineError as error:
        return error.finding.name
    return weights(task), made.global_step, made.num_training_batches


@pytest.mark.parametrize(("mode", "batches"), [("min_size", 2), ("max_size_cycle", 4)])
def test_loaders_together(ranks, tmp_path, mode, batches):
    found = agree(ranks, zips, str(tmp_path / "run"), mode, 12)
    assert found[1:] == (2 * batches, batches)


def test_shares_that_differ_are_refused(ranks, tmp_path):
    """Of the last batch of 4 rows three ranks have shares other than of 6."""
    found = ranks.run(zips, str(tmp_path / "run"), "min_size", 10, world_size=3)
    assert "batch-weight-unknown" in found


class InTurn(Task):
    def training_step(self, batch, batch_idx, dataloader_idx):
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        return loss * (1 + dataloader_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx):
        self.log("val", nn.functional.mse_loss(self(batch[0]), batch[1]))


def in_turn(folder):
    task = InTurn()
    made = trainer(folder, enable_checkpointing=False)
    made.fit(
        task,
        CombinedLoader([loaders(11, 4), loaders(7, 4)], "sequential"),
        [loaders(5, 2), loaders(3, 2)],
    )
    values = {name: float(value) for name, value in made.callback_metrics.items()}
    gathered = made.all_gather(torch.tensor([made.global_rank]))
    assert gathered.flatten().tolist() == list(range(made.world_size))
    return [weights(task), [values[name] for name in sorted(values)]], sorted(values)


def test_loaders_in_turn_and_several_validations(ranks, tmp_path):
    _, names = agree(ranks, in_turn, str(tmp_path / "run"))
    assert names == ["val/dataloader_idx_0", "val/dataloader_idx_1"]


def with_callbacks(folder, epochs, **options):
    task = Task()
    best = ModelCheckpoint(monitor="val_loss", filename="{epoch}", save_last=True)
    stop = EarlyStopping(monitor="val_loss", patience=9)
    average = EMAWeightAveraging(decay=0.5)
    made = trainer(folder, max_epochs=epochs, callbacks=[best, stop, average], **options)
    made.fit(task, loaders(23, 5, shuffle=True), loaders(7, 3))
    score = float(best.best_model_score)
    assert Task.load_from_checkpoint(best.best_model_path).state_dict().keys()
    return [weights(task), score, float(stop.best_score)], best.best_model_path, stop.wait_count


def test_callbacks_continue_on_another_number_of_ranks(ranks, tmp_path):
    """Their state is in the checkpoint: the best so far, the patience and the averages."""
    ((expected, path, waited),) = ranks.run(
        with_callbacks, str(tmp_path / "whole"), 4, world_size=1
    )
    ranks.run(with_callbacks, str(tmp_path / "run"), 2, world_size=3)
    resumed = ranks.run(resumes, str(tmp_path / "run"), 4, world_size=2)
    for found, found_path, found_waited in resumed:
        assert flat(found) == pytest.approx(flat(expected), abs=1e-10, rel=0)
        assert found_path.removeprefix(str(tmp_path / "run")) == path.removeprefix(
            str(tmp_path / "whole")
        )
        assert found_waited == waited


def resumes(folder, epochs):
    return with_callbacks(folder, epochs, resume=True)


class Stops(Task):
    """Stops inside an epoch, as at a signal; what follows is left to another start."""

    stop_at = None

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (self.current_epoch, batch_idx) == self.stop_at:
            self.trainer.session.stop()


def fitted(made, *args):
    """Fit, where ranks agree on a stop at each step; return the status with which it stops."""
    every_s, stopping.MEETING_EVERY_S = stopping.MEETING_EVERY_S, 1e-6
    try:
        made.fit(*args)
    except SystemExit as ended:
        return ended.code
    finally:
        stopping.MEETING_EVERY_S = every_s
    return None


def accumulates(folder, stop_at, resume=False):
    task = Stops()
    task.stop_at = stop_at
    scheduler = GradientAccumulationScheduler({1: 2, 2: 5, 3: 1})
    made = trainer(folder, max_epochs=4, callbacks=[scheduler], resume=resume)
    if status := fitted(made, task, loaders(23, 5, shuffle=True)):
        return status
    return weights(task), made.global_step


@pytest.mark.parametrize("stop_at", [(1, 2), (2, 3)])
def test_steps_of_more_batches_from_an_epoch_on(ranks, tmp_path, stop_at):
    """The last of five batches has three rows; a stop is in the middle of a group."""
    expected, steps = agree(ranks, accumulates, str(tmp_path / "whole"), None)
    assert steps == 5 + 3 + 1 + 5
    folder = str(tmp_path / "run")
    assert ranks.run(accumulates, folder, stop_at, world_size=3) == [75] * 3
    for found, found_steps in ranks.run(accumulates, folder, None, True, world_size=2):
        assert flat(found) == pytest.approx(flat(expected), abs=1e-10, rel=0)
        assert found_steps == steps


class Grows(DataModule):
    """More data in later epochs, of which each time another part is left out at random."""

    def train_dataloader(self):
        whole = regression(17 + 6 * self.trainer.current_epoch)
        kept, _ = random_split(whole, [len(whole) - 2, 2])
        return DataLoader(kept, 5, shuffle=True)

    def val_dataloader(self):
        return loaders(5 + self.trainer.current_epoch, 3)


def reloads(folder, stop_at, resume=False):
    task = Stops()
    task.stop_at = stop_at
    made = trainer(folder, max_epochs=5, reload_dataloaders_every_n_epochs=2, resume=resume)
    if status := fitted(made, task, Grows()):
        return status
    return [weights(task), float(made.callback_metrics["val_loss"])], made.num_training_batches


@pytest.mark.parametrize("stop_at", [(1, 1), (3, 2)])
def test_loaders_that_are_made_again(ranks, tmp_path, stop_at):
    expected, batches = agree(ranks, reloads, str(tmp_path / "whole"), None)
    assert batches == 8
    folder = str(tmp_path / "run")
    assert ranks.run(reloads, folder, stop_at, world_size=3) == [75] * 3
    for found, _ in ranks.run(reloads, folder, None, True, world_size=2):
        assert flat(found) == pytest.approx(flat(expected), abs=1e-10, rel=0)


class Extremes(Task):
    def training_step(self, batch, batch_idx):
        self.log("most", batch[1].max(), on_step=False, on_epoch=True, reduce_fx="max")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("least", batch[1].min(), reduce_fx=torch.min)


def logs_extremes(folder, length, stop_at=None, resume=False):
    """The last batch has one row, so that other ranks have none of it."""
    task = type("Extremes", (Extremes, Stops), {})()
    task.stop_at = stop_at
    made = trainer(folder, max_epochs=1, resume=resume)
    if status := fitted(made, task, loaders(length, 4), loaders(length, 4)):
        return status
    return [made.callback_metrics[name].item() for name in ("most", "least")]


@pytest.mark.parametrize("length", [1, 13])
def test_the_greatest_and_the_least_of_all_ranks(ranks, tmp_path, length):
    y = regression(length).tensors[1]
    expected = [y.max().item(), y.min().item()]
    for world_size in WORLDS:
        folder = str(tmp_path / str(world_size))
        found = ranks.run(logs_extremes, folder, length, world_size=world_size)
        assert found == [expected] * world_size


def test_the_greatest_so_far_is_part_of_a_checkpoint(ranks, tmp_path):
    y = regression(13).tensors[1]
    folder = str(tmp_path / "run")
    assert ranks.run(logs_extremes, folder, 13, (0, 0), world_size=2) == [75] * 2
    found = ranks.run(logs_extremes, folder, 13, None, True, world_size=3)
    assert found == [[y.max().item(), y.min().item()]] * 3


def ends_in_time(folder):
    batches = []

    class Counts(Task):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            batches.append(batch_idx)

    made = trainer(folder, max_epochs=None, max_time={"seconds": 0.2})
    made.fit(Counts(), loaders(shuffle=True))
    return len(batches), made.current_epoch


def test_all_ranks_end_after_the_same_batch(ranks, tmp_path):
    found = ranks.run(ends_in_time, str(tmp_path / "run"), world_size=3)
    assert found == [found[0]] * 3
    assert found[0][0] > 0


def rows_alone():
    """What forward takes, which predict_step calls unless it is overridden."""
    return DataLoader(list(regression(7).tensors[0]), 3)


def saves_shards(folder):
    made = trainer(folder, strategy="fsdp", max_epochs=1)
    task = Task()
    made.fit(task, loaders(shuffle=True))
    made.save_checkpoint(f"{folder}/weights.ckpt", weights_only=True)
    made.save_checkpoint(f"{folder}/whole.ckpt")
    made.session.barrier()
    found = weights(task)
    for name in ("weights.ckpt", "whole.ckpt"):
        assert weights(Task.load_from_checkpoint(f"{folder}/{name}")) == found
    predictions = [part.tolist() for part in made.predict(task, rows_alone())]
    return found, predictions


def test_shards_are_saved_as_whole_weights(ranks, tmp_path):
    first, second = ranks.run(saves_shards, str(tmp_path / "run"), world_size=2)
    assert first == second
    ((expected, predictions),) = ranks.run(saves_whole, str(tmp_path / "one"), world_size=1)
    assert flat(first[0]) == pytest.approx(flat(expected), abs=1e-8, rel=0)
    assert flat(first[1]) == pytest.approx(flat(predictions), abs=1e-8, rel=0)


def saves_whole(folder):
    made, task = trainer(folder, max_epochs=1), Task()
    made.fit(task, loaders(shuffle=True))
    return weights(task), [part.tolist() for part in made.predict(task, rows_alone())]
