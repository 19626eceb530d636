"""A backward by hand: refused where a step would use it, left alone where nothing does."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline import Session
from paceline.errors import UsageError
from unit.train.trainer.training import first_optimizer, no_signals, unlaunched  # noqa: F401  the fixtures are used by being here


def training(num_batches=3, **options):
    """Return a session, a model, its optimizer and batches."""
    session = Session(loggers=(), **options)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return (
        session,
        model,
        optimizer,
        session.loader(TensorDataset(torch.randn(4 * num_batches, 4)), 4),
    )


def step(optimizer):
    optimizer.step()
    optimizer.zero_grad()


def test_a_step_on_it_is_refused():
    _, model, optimizer, loader = training()
    for (x,) in loader:
        model(x).mean().backward()
        with pytest.raises(UsageError) as caught:
            step(optimizer)
        break
    assert caught.value.finding.name == "backward-outside-session"
    assert "SGD.step()" in caught.value.finding.where


def test_also_after_steps_of_the_session():
    """One parameter is looked at then, and the cost of the others is saved."""
    session, model, optimizer, loader = training()
    with pytest.raises(UsageError) as caught:
        for number, (x,) in enumerate(loader):
            if number < 2:
                session.backward(model(x).mean())
            else:
                model(x).mean().backward()
            step(optimizer)
    assert session.step == 2
    assert caught.value.finding.name == "backward-outside-session"


def test_a_backward_of_the_session_that_would_add_to_it_is_refused():
    session, model, _, loader = training(accumulate=2)
    for (x,) in loader:
        model(x).mean().backward()
        with pytest.raises(UsageError) as caught:
            session.backward(model(x).mean())
        break
    assert "before session.backward" in caught.value.finding.where


def test_an_attack_on_the_inputs_is_left_alone():
    """The tutorial's FGSM: the gradients of the weights are thrown away."""
    session, model, optimizer, loader = training()
    for (x,) in loader:
        x.requires_grad_()
        model(x).mean().backward()
        optimizer.zero_grad()
        session.backward(model((x + 0.1 * x.grad.sign()).detach()).mean())
        step(optimizer)
    assert session.step == 3


def test_gradients_set_to_zero_are_no_gradients():
    session, model, optimizer, loader = training()
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.zero_grad(set_to_none=False)
        session.backward(model(x).mean())
        step(optimizer)
    assert session.step == 3


def test_gradients_by_autograd_grad_are_the_scripts_own():
    _, model, optimizer, loader = training()
    for (x,) in loader:
        parameters = list(model.parameters())
        for each, value in zip(
            parameters, torch.autograd.grad(model(x).mean(), parameters), strict=True
        ):
            each.grad = value
        step(optimizer)


def test_other_models_are_nobodys_business():
    session, model, optimizer, loader = training()
    other = nn.Linear(4, 1, device=session.device)
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    for (x,) in loader:
        other(x).mean().backward()
        step(others)
    model(x).mean().backward()
    step(others)  # this optimizer has none of the model's
    optimizer.zero_grad()


def test_copies_are_not_watched():
    session, model, optimizer, loader = training()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        steps = torch.optim.SGD(twin.parameters(), lr=0.1)
        for (x,) in loader:
            twin(x).mean().backward()
            step(steps)
    for (x,) in loader:
        session.backward(model(x).mean())
        step(optimizer)
    assert session.step == 3


def test_a_second_session_takes_the_model_over():
    _, model, _, _ = training()
    session = Session(loggers=())
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in session.loader(TensorDataset(torch.randn(8, 4)), 4):
        session.backward(model(x).mean())
        step(optimizer)
    assert session.step == 2


def test_nothing_is_left_on_optimizers():
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    before = dict(_global_optimizer_pre_hooks)
    session, model, optimizer, loader = training()
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.zero_grad()
        session.backward(model(x).mean())
        step(optimizer)
    assert dict(_global_optimizer_pre_hooks) == before
