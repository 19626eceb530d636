"""What the Trainer finds of itself in a checkpoint, and what a second fit of a process does with the first one's."""

import itertools

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from paceline.errors import UsageError
from paceline.train.session import run_folder
from paceline.train.trainer.fitting import Fit
from refusals import refusal
from unit.train.trainer.training import Task, dataset, loader, loss_of, rows, trainer, weights

# From one run to the next


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
    monkeypatch.setattr("paceline.train.trainer.resuming._fitted", set())  # as in the next process
    run_folder.reset()
    task = Task()
    trainer(max_epochs=2, run_dir=None).fit(task, loader())
    assert [epoch for epoch, _, _ in task.seen] == [1] * 5


class Scheduled(Task):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def test_schedulers_are_in_the_checkpoint():
    trainer(max_epochs=2).fit(Scheduled(), loader(4))
    task = Scheduled()
    trainer(max_epochs=3, resume=True).fit(task, loader(4))
    assert task.optimizers().param_groups[0]["lr"] == 0.05 / 8


# Another fit of the same process


def test_another_fit_is_another_run():
    made, first, second = trainer(enable_checkpointing=False), Task(), Task()
    made.fit(first, loader())
    made.fit(second, loader())
    assert weights(first) == weights(second)
    assert made.global_step == 10


@pytest.fixture
def launched(monkeypatch):
    monkeypatch.setenv("PACELINE_RUN_DIR", "run")


def test_a_second_fit_does_not_go_on_by_itself(launched):
    """As folds of a cross-validation would: of three one was trained, and nobody said so."""
    task, made = Task(), trainer(max_epochs=1, run_dir=None)
    made.fit(Task(), loader())
    finding = refusal(UsageError, made.fit, task, loader())
    assert (finding.name, task.seen) == ("option-contradicted", [])
    assert "another Trainer" in finding.fix
    assert "Trainer(resume=True)" in finding.fix


@pytest.mark.parametrize(
    ("options", "batches"),
    [({"resume": False}, 5), ({"resume": True}, 0), ({"resume": True, "max_epochs": 2}, 5)],
)
def test_a_second_fit_does_as_it_is_told(launched, options, batches):
    task, made = Task(), trainer(**{"max_epochs": 1, "run_dir": None, **options})
    trainer(max_epochs=1, run_dir=made.session.run_dir.root).fit(Task(), loader())
    made.fit(task, loader())
    assert len(task.seen) == batches


def test_a_second_trainer_has_a_folder_of_its_own(launched):
    """Folds of a cross-validation: each was refused but the first, and before that evaluated untrained."""
    folds = [trainer(max_epochs=1, run_dir=None) for _ in range(3)]
    tasks = [Task() for _ in folds]
    for fold, task in zip(folds, tasks, strict=True):
        fold.fit(task, loader())
    assert [len(task.seen) for task in tasks] == [5, 5, 5]
    assert [fold.session.run_dir.root.name for fold in folds] == [
        folds[0].session.run_dir.root.name,
        "session-2",
        "session-3",
    ]


def test_a_second_fit_is_fine_where_the_first_has_saved_nothing(launched):
    made, first, second = trainer(run_dir=None, enable_checkpointing=False), Task(), Task()
    made.fit(first, loader())
    made.fit(second, loader())
    assert weights(first) == weights(second)
    trainer(run_dir=None).fit(Task(), loader())


# In the middle of an epoch


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


def test_an_epoch_in_two_runs_is_one_for_schedulers():
    trainer(max_steps=7).fit(Scheduled(), loader())
    task = Scheduled()
    trainer(resume=True).fit(task, loader())
    assert task.optimizers().param_groups[0]["lr"] == 0.05 / 4


def test_a_limited_epoch_is_a_whole_one():
    trainer(max_epochs=1, limit_train_batches=2).fit(Task(), loader())
    task = Task()
    trainer(limit_train_batches=2, resume=True).fit(task, loader())
    assert task.seen == [(1, 0, 2), (1, 1, 3)]


class Uneven(BatchSampler):
    """Batches of 3, 4, 5, 6 and 2 samples."""

    def __init__(self):
        super().__init__(SequentialSampler(range(20)), 1, False)

    def __iter__(self):
        bounds = [0, 3, 7, 12, 18, 20]
        return (list(range(first, end)) for first, end in itertools.pairwise(bounds))

    def __len__(self):
        return 5


def uneven():
    return DataLoader(dataset(), batch_sampler=Uneven())


def test_batches_of_a_batch_sampler_are_counted_on():
    """Their number does not follow from the samples that are done."""
    trainer(max_steps=3, limit_train_batches=4).fit(Task(), uneven())
    task = Task()
    trainer(max_epochs=1, limit_train_batches=4, resume=True).fit(task, uneven())
    assert task.seen == [(0, 3, 3)]
    whole = Task()
    trainer(max_epochs=1, limit_train_batches=4, run_dir="whole").fit(whole, uneven())
    assert weights(task) == weights(whole)


def test_a_validation_in_between_is_where_it_was():
    class Remembers(Task):
        def on_validation_start(self):
            self.validated.append(self.global_step)

    trainer(max_steps=1).fit(Task(), uneven())
    task = Remembers()
    task.validated = []
    trainer(max_epochs=1, val_check_interval=3, resume=True).fit(task, uneven(), loader(4))
    assert task.validated == [3, 5]


def test_a_checkpoint_without_a_number_of_batches(monkeypatch):
    """As those of earlier releases are."""
    state_dict = Fit.state_dict

    def older(self):
        return {name: each for name, each in state_dict(self).items() if name != "batches"}

    with monkeypatch.context() as patched:
        patched.setattr(Fit, "state_dict", older)
        trainer(max_steps=7).fit(Task(), loader())
    task = Task()
    trainer(resume=True).fit(task, loader())
    assert task.seen == [(1, 2, 7), (1, 3, 8), (1, 4, 9)]


def test_what_is_logged_at_the_end_of_an_epoch_is_logged_once_for_it():
    """Also where the last step comes in its middle, and the hook is called there and at the epoch's own end."""

    class Ends(Task):
        def on_train_epoch_end(self):
            self.log("ends", 1.0, reduce_fx="sum")

    trainer(max_steps=7).fit(Ends(), loader())
    trainer(resume=True).fit(Ends(), loader())
    assert [row["ends"] for row in rows() if row["ends"]] == ["1.0", "1.0", "1.0"]


class Cut(Task):
    """Saves behind a batch, and is interrupted there."""

    cut_at = None

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx == self.cut_at:
            self.trainer.session.save(wait=True)
            raise KeyboardInterrupt


def cut_and_go_on(task, batch, **options):
    task.cut_at = batch
    with pytest.raises(KeyboardInterrupt):
        trainer(**options).fit(task, loader())
    task.cut_at, task.seen = None, []
    trainer(**options, resume=True).fit(task, loader())


def test_means_of_what_is_done_again_begin_anew():
    """A checkpoint inside the first group of batches, which is trained on again."""

    class Counts(Cut):
        def training_step(self, batch, batch_idx):
            self.log("batches", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")
            return super().training_step(batch, batch_idx)

    task = Counts()
    cut_and_go_on(task, 0, accumulate_grad_batches=5, max_epochs=1)
    assert len(task.seen) == 5
    assert [row["batches"] for row in rows()] == ["5.0"]


def test_a_checkpoint_after_the_last_batch_of_a_limited_epoch():
    task = Cut()
    cut_and_go_on(task, 1, limit_train_batches=2)
    assert task.seen == [(1, 0, 2), (1, 1, 3)]


def test_a_checkpoint_from_the_middle_of_an_epoch_is_tested_on_other_data():
    """Its position is one in the data that was trained on."""
    trained = Task()
    trainer(max_steps=7).fit(trained, loader())
    task = Task()
    (values,) = trainer().test(task, loader(7), ckpt_path="last")
    assert values["test_loss"] == pytest.approx(loss_of(trained, 7), abs=1e-14)
    finding = refusal(UsageError, trainer().fit, Task(), loader(7), ckpt_path="last")
    assert finding.name == "data-changed"


def test_a_stream_that_is_read_up():
    """With max_steps alone the training would never end."""

    class Once(IterableDataset):
        def __init__(self):
            self.left = iter(dataset(8))

        def __iter__(self):
            return self.left

    task = Task()
    with pytest.raises(UsageError, match="the loader for train has no batch"):
        trainer(max_epochs=None, max_steps=3, enable_checkpointing=False).fit(
            task, DataLoader(Once(), batch_size=4)
        )
    assert len(task.seen) == 2


def test_a_stream_ends_with_the_last_step():
    """What is left of it is nothing, and no mistake."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(dataset(3))

    trainer(max_steps=1).fit(Task(), DataLoader(Stream(), batch_size=4))
    task = Task()
    trainer(resume=True).fit(task, DataLoader(Stream(), batch_size=4))
    assert task.seen == [(1, 0, 1)]
