"""Losses that tutorials show: over tokens, classes and slopes; and what is refused."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from ranks import parity
from ranks.parity import WIDTH, mse, net, rows

pytestmark = pytest.mark.ci


def distilled(folder):
    session = parity.session_of(folder)
    torch.manual_seed(1)
    teacher, student = net(3).double().requires_grad_(False).eval(), net(3)
    model, optimizer = session.setup(student, torch.optim.AdamW(student.parameters(), lr=0.02))
    teacher = session.setup(teacher)
    x, _ = rows()

    def loss_of(model, batch):
        (inputs,) = batch
        found, goal = model(inputs).log_softmax(1), teacher(inputs).log_softmax(1)
        return nn.functional.kl_div(found, goal, reduction="batchmean", log_target=True)

    loader = session.loader(TensorDataset(x), parity.BATCH, shuffle=True)
    return parity.train(
        session, model, optimizer, loader, loss_of, watch=lambda model: loss_of(model, (x,))
    )


def gradient_penalty(folder):
    """The penalty of WGAN-GP: a gradient with respect to the inputs is part of the loss."""
    # A second derivative comes in another memory layout than its parameter, of which DDP says that it costs time.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.AdamW(model.parameters(), lr=0.02))

    def loss_of(model, batch):
        x = batch[0].clone().requires_grad_()
        prediction = model(x)
        (slope,) = torch.autograd.grad(prediction.sum(), x, create_graph=True)
        return (
            nn.functional.mse_loss(prediction, batch[1])
            + 0.1 * (slope.norm(dim=1) - 1).square().mean()
        )

    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    return parity.train(
        session, model, optimizer, loader, loss_of, watch=lambda model: mse(model, rows())
    )


def masked_tokens(folder, *, weighted):
    """A loss over the tokens that a mask leaves, in sequences of one length."""
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := net(3), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(parity.LENGTH, 6, WIDTH, generator=generator, dtype=torch.float64)
    y = (
        x.argmax(-1)
        .clamp(max=2)
        .masked_fill(torch.rand(x.shape[:2], generator=generator) < 0.4, -100)
    )

    def loss_of(model, batch):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        tokens = labels.ne(-100).sum()
        return (loss if tokens else loss.nan_to_num(), tokens) if weighted else loss

    loader = session.loader(TensorDataset(x, y), parity.BATCH, shuffle=True)
    whole = lambda model: nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())  # noqa: E731
    return parity.train(session, model, optimizer, loader, loss_of, watch=whole)


def per_token_weighted(folder):
    return masked_tokens(folder, weighted=True)


def per_token_unweighted(folder):
    return masked_tokens(folder, weighted=False)


def weighted_classes(folder, *, weighted):
    """``cross_entropy(weight=...)`` divides by the weights of the classes that a batch has."""
    session = parity.session_of(folder)
    model, optimizer = session.setup(
        model := net(3), torch.optim.AdamW(model.parameters(), lr=0.02)
    )
    x, _ = rows()
    y, weights = x.argmax(1).clamp(max=2), torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)

    def loss_of(model, batch):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(model(inputs), labels, weight=weights)
        return (
            (loss if len(labels) else loss.nan_to_num(), weights[labels].sum())
            if weighted
            else loss
        )

    loader = session.loader(TensorDataset(x, y), parity.BATCH, shuffle=True)
    whole = lambda model: nn.functional.cross_entropy(model(x), y, weight=weights)  # noqa: E731
    return parity.train(session, model, optimizer, loader, loss_of, watch=whole)


def classes_weighted(folder):
    return weighted_classes(folder, weighted=True)


def classes_unweighted(folder):
    return weighted_classes(folder, weighted=False)


def summed(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.01))
    loader = session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True)

    def loss_of(model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum")

    return parity.train(
        session, model, optimizer, loader, loss_of, watch=lambda model: mse(model, rows())
    )


def backward_by_hand(folder):
    session = parity.session_of(folder)
    model, optimizer = session.setup(model := net(), torch.optim.SGD(model.parameters(), lr=0.01))
    for batch in session.loader(TensorDataset(*rows()), parity.BATCH):
        mse(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def dict_of_datasets(folder):
    whole = TensorDataset(*rows())
    session = parity.session_of(folder)
    session.loader({"train": whole, "test": whole}, 1)


SETUPS = [distilled, gradient_penalty, per_token_weighted, classes_weighted]
REFUSED = {
    per_token_unweighted: "batch-weight-unknown",
    classes_unweighted: "batch-weight-unknown",
    summed: "loss-is-a-sum",
    backward_by_hand: "backward-outside-session",
    dict_of_datasets: "data-not-shardable",
}


@pytest.mark.parametrize(("setup", "world_size"), parity.cases(SETUPS))
def test_any_number_of_ranks_trains_what_one_would(
    library_ranks, alone, tmp_path, setup, world_size
):
    parity.check(parity.run(library_ranks, setup, tmp_path / "run", world_size), alone(setup))


@pytest.mark.slow  # a finding on one rank leaves the others in a collective until its timeout
@pytest.mark.parametrize(("setup", "world_size"), parity.cases(REFUSED))
def test_what_cannot_be_known_is_asked_for(library_ranks, tmp_path, setup, world_size):
    found = parity.run(library_ranks, setup, tmp_path / "run", world_size)
    assert parity.names_of(found) == {REFUSED[setup]}
