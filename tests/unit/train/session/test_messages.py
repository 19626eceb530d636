"""A mistake on one rank gets a finding, where torch or Python raised their own text."""

import argparse

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import Module, Session, Trainer
from paceline.errors import UsageError


@pytest.fixture
def session(tmp_path):
    return Session(run_dir=tmp_path, loggers=())


def finding_of(function, *args, **kwargs):
    with pytest.raises(UsageError) as raised:
        function(*args, **kwargs)
    return raised.value.finding


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"accumulat": 2}, "Session(accumulate=2)"),
        ({"precison": "bf16-mixed"}, "Session(precision='bf16-mixed')"),
        ({"xyz": 1}, "one of precision, accumulate"),
    ],
)
def test_an_option_that_does_not_exist(options, fix):
    finding = finding_of(Session, **options)
    assert finding.name == "option-unknown"
    assert finding.fix.startswith(fix)


class Narrower(Session):
    def __init__(self, folder):
        super().__init__(run_dir=folder, loggers=())


def test_a_subclass_has_its_own_options(tmp_path):
    assert Narrower(tmp_path).world_size == 1
    assert finding_of(Narrower, foldr=tmp_path).fix.startswith("Narrower(folder=")


LOGGED = [
    3,
    0.5,
    True,
    numpy.float32(2),
    numpy.int64(2),
    numpy.ones(1),
    torch.ones(()),
    torch.ones(1),
]


@pytest.mark.parametrize("value", LOGGED, ids=repr)
def test_numbers_are_logged(session, value):
    session.log({"x": value})


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "x is of type NoneType"),
        ([1.0], "x is of type list"),
        (torch.ones(3), "x is of shape [3]"),
        (numpy.ones((2, 2)), "x is of shape [2, 2]"),
        (torch.ones(0), "x is of shape [0]"),
    ],
)
def test_what_is_not_a_number_is_refused(session, value, what):
    finding = finding_of(session.log, {"x": value})
    assert (finding.name, finding.what[: len(what)]) == ("option-invalid", what)


def test_a_loss_without_gradient(session):
    model = session.setup(nn.Linear(2, 1))
    loss = model(torch.ones(1, 2, device=session.device)).mean()
    assert "detached" in finding_of(session.backward, loss.detach()).what
    with torch.no_grad():
        assert "no_grad" in finding_of(session.backward, loss * 1).what
    assert session.backward(loss)


def test_batch_norm_of_one_row(session):
    model = session.setup(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    loader = session.loader(TensorDataset(torch.ones(5, 2)), 2)
    batches = [x for (x,) in loader]
    for (x,) in loader:
        if len(x) == 1:
            finding = finding_of(model, x)
        else:
            model(x)
    assert (finding.name, len(batches)) == ("rows-too-few", 3)
    assert 'last="drop"' in finding.fix
    model.eval()
    for (x,) in loader:
        model(x)


class Task(Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


def test_lbfgs_in_the_trainer(tmp_path):
    trainer = Trainer(max_epochs=1, default_root_dir=tmp_path)
    loader = torch.utils.data.DataLoader(TensorDataset(torch.ones(4, 2)), 2)
    finding = finding_of(trainer.fit, Task(), loader)
    assert (finding.name, finding.where) == ("option-contradicted", "configure_optimizers")
    assert "LBFGS" in finding.what


class Output:
    """A model's output, as transformers has it."""

    def __init__(self, loss):
        self.loss = loss


@pytest.mark.parametrize(
    ("loss", "kind", "fix"),
    [
        (0.5, "float", "session.backward(loss) before loss.item()"),
        (Output(torch.ones(())), "Output", "session.backward(output.loss)"),
    ],
)
def test_a_loss_that_is_no_tensor(session, loss, kind, fix):
    finding = finding_of(session.backward, loss)
    assert finding.what == f"the loss is of type {kind}, and a tensor is needed"
    assert finding.fix.startswith(fix)


def test_values_without_names(session):
    assert "log takes a dict" in finding_of(session.log, 0.5).what
    options = argparse.Namespace(lr=0.1)
    assert "vars(options)" in finding_of(session.log_hyperparameters, options).fix


@pytest.mark.parametrize(
    ("source", "fix"), [(3, "session.load(FILE)"), (nn.Linear(2, 1), "other.state_dict()")]
)
def test_weights_of_something_else(session, source, fix):
    session.setup(nn.Linear(2, 1))
    finding = finding_of(session.load, source)
    assert finding.name == "option-invalid"
    assert fix in finding.fix
