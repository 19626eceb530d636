"""Steps of more or fewer batches from an epoch on."""

import pytest
import torch
from torch import nn

from paceline import Session
from paceline.callbacks import GradientAccumulationScheduler
from paceline.errors import UsageError
from refusals import refusal
from unit.train.trainer.training import Task, loader, mse, trainer, weights

SCHEDULE = {1: 2, 3: 5}  # of epochs of five batches


def by_hand(epochs):
    """Train a task in a plain loop with the steps of ``SCHEDULE``."""
    task = Task()
    optimizer = task.configure_optimizers()
    for epoch in range(epochs):
        group = {0: 1, 1: 2, 2: 2}.get(epoch, 5)
        batches = list(loader())
        for start in range(0, len(batches), group):
            parts = batches[start : start + group]
            x, y = (torch.cat(part) for part in zip(*parts, strict=True))
            mse(task(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return task


def test_steps_are_those_of_a_loop_by_hand():
    task = Task()
    made = trainer(max_epochs=4, callbacks=[GradientAccumulationScheduler(SCHEDULE)])
    made.fit(task, loader())
    assert made.global_step == 5 + 3 + 3 + 1
    for ours, theirs in zip(task.parameters(), by_hand(4).parameters(), strict=True):
        assert torch.allclose(ours.cpu(), theirs, atol=1e-14, rtol=0)


class Cut(Task):
    """Ends with an error behind a checkpoint in the middle of an epoch."""

    cut_at = None

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if (self.current_epoch, batch_idx) == self.cut_at:
            self.trainer.session.save(wait=True)
            raise KeyboardInterrupt


@pytest.mark.parametrize("cut_at", [(1, 1), (2, 2), (3, 3)])
def test_a_resumed_epoch_has_the_same_steps(cut_at):
    def new():
        return trainer(
            max_epochs=4, callbacks=[GradientAccumulationScheduler(SCHEDULE)], resume=True
        )

    task = Cut()
    task.cut_at = cut_at
    with pytest.raises(KeyboardInterrupt):
        new().fit(task, loader(shuffle=True))
    resumed, task = new(), Task()
    resumed.fit(task, loader(shuffle=True))
    whole = Task()
    trainer(max_epochs=4, callbacks=[GradientAccumulationScheduler(SCHEDULE)], run_dir="other").fit(
        whole, loader(shuffle=True)
    )
    assert resumed.global_step == 12
    assert weights(task) == weights(whole)


def test_the_number_of_steps_is_known_before():
    seen = []

    class Asks(Task):
        def configure_optimizers(self):
            seen.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    for options in ({"max_epochs": 4}, {"max_epochs": 1000, "max_steps": 9}, {"max_epochs": 2}):
        made = trainer(callbacks=[GradientAccumulationScheduler(SCHEDULE)], **options)
        made.fit(Asks(), loader())
        assert made.global_step == seen[-1]
    assert seen == [12, 9, 8]


def test_a_script_may_set_it_in_a_hook_of_the_epochs_start():
    class Sets(Task):
        def on_train_epoch_start(self):
            self.trainer.accumulate_grad_batches = 5 if self.current_epoch else 1

    made = trainer()
    made.fit(Sets(), loader())
    assert made.global_step == 6


def test_it_does_not_change_in_the_middle_of_an_epoch():
    class Sets(Task):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.trainer.accumulate_grad_batches = 2

    finding = refusal(UsageError, trainer().fit, Sets(), loader())
    assert finding.name == "option-contradicted"
    assert "inside a loop over training batches" in finding.what


@pytest.mark.parametrize(
    ("scheduling", "named"),
    [({}, "scheduling={}"), ({-1: 2}, "an epoch of scheduling=-1"), ({3: 0}, "scheduling[3]=0")],
)
def test_misuse(scheduling, named):
    finding = refusal(UsageError, GradientAccumulationScheduler, scheduling)
    assert finding.name == "option-invalid"
    assert named in finding.what


def test_a_limit_that_cuts_through_a_later_group_is_refused_before_training():
    task = Task()
    with pytest.raises(UsageError) as caught:
        trainer(limit_train_batches=3, callbacks=[GradientAccumulationScheduler({1: 2})]).fit(
            task, loader()
        )
    assert "3 batches, and 2 make a step" in caught.value.finding.what
    assert task.seen == []


def test_two_answers_and_manual_optimization_are_refused():
    class Manual(Task):
        automatic_optimization = False

    callbacks = [GradientAccumulationScheduler({1: 2})]
    with pytest.raises(UsageError, match="both say how many batches"):
        trainer(accumulate_grad_batches=4, callbacks=callbacks).fit(Task(), loader())
    with pytest.raises(UsageError, match="under manual optimization"):
        trainer(callbacks=callbacks).fit(Manual(), loader())


def test_a_session_takes_more_batches_in_a_step_and_weighs_them_by_their_labels():
    """Labels that a loss ignores count from the first accumulated batch on."""
    x, y = torch.ones(8, 3), torch.tensor([0, 1, -100, -100, -100, 1, 0, 1])
    session = Session(run_dir="run", loggers=())
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.setup(model, optimizer)
    train = session.loader(torch.utils.data.TensorDataset(x, y), 4)
    loss_of = nn.CrossEntropyLoss()
    assert [session.backward(loss_of(model(a), b)) for a, b in train] == [True, True]
    session.accumulate = 2
    assert session.accumulate == 2
    with pytest.raises(UsageError) as caught:
        [session.backward(loss_of(model(a), b)) for a, b in train]
    assert caught.value.finding.name == "batch-weight-unknown"


def test_a_session_without_a_loader_changes_it_between_steps():
    session = Session(run_dir="run", loggers=(), accumulate=2)
    model = session.setup(nn.Linear(3, 1))
    x = torch.ones(1, 3, device=session.device)
    assert session.backward(model(x).mean()) is False
    with pytest.raises(UsageError, match="inside a loop"):
        session.accumulate = 3
    assert session.backward(model(x).mean()) is True
    session.accumulate = 3
    results = [session.backward(model(x).mean()) for _ in range(3)]
    assert results == [False, False, True]
