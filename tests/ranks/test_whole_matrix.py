"""Optimizers that work on whole matrices: right on shards, as torch's Muon, or refused at setup."""

import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from paceline import FSDP, Session
from paceline.errors import PacelineError
from paceline.train.model import whole_matrix

pytestmark = pytest.mark.ci
WIDTH = 6


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class OfItsRows(torch.optim.Optimizer):
    """Begins with what a rank holds, as code with kernels of its own does."""

    def __init__(self, parameters, lr=0.02):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    own, gradient = local(parameter), local(parameter.grad)
                    own.sub_(self.direction(own, gradient), alpha=group["lr"])

    def direction(self, own, gradient):
        raise NotImplementedError


class Signs(OfItsRows):
    """Right on shards: each value for itself."""

    def direction(self, own, gradient):
        return gradient.sign()


class Orthogonal(OfItsRows):
    def direction(self, own, gradient):
        if gradient.dim() < 2 or not len(gradient):
            return gradient
        left, _, right = torch.linalg.svd(gradient.flatten(1), full_matrices=False)
        return (left @ right).view_as(gradient)


class Normed(OfItsRows):
    """As LAMB: a step as long as the parameter."""

    def direction(self, own, gradient):
        return gradient * own.norm() / (gradient.norm() + 1e-8)


class Centred(OfItsRows):
    def direction(self, own, gradient):
        return gradient - gradient.mean(0, keepdim=True)


class Noisy(OfItsRows):
    def direction(self, own, gradient):
        return gradient + torch.randn_like(gradient)


class Wrapped(OfItsRows):
    """Steps another optimizer, whose parameters are the model's."""

    def __init__(self, parameters):
        parameters = list(parameters)
        super().__init__(parameters)
        self.inner = torch.optim.SGD(parameters, lr=0.1)
        self.inner.param_groups = self.param_groups

    def step(self, closure=None):
        self.inner.step()


class NeedsClosure(OfItsRows):
    def step(self, closure):
        return closure()


def muon(parameters):
    matrices = [parameter for parameter in parameters if parameter.dim() == 2]
    return torch.optim.Muon(matrices, lr=0.02)


def warming(parameters):
    optimizer = Orthogonal(parameters)
    LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    return optimizer


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": torch.optim.AdamW,
    "Adafactor": torch.optim.Adafactor,
    "Muon": muon,
    "warming up": warming,
    **{kind.__name__: kind for kind in (Signs, Orthogonal, Normed, Centred, Noisy)},
    **{kind.__name__: kind for kind in (Wrapped, NeedsClosure)},
}
RIGHT = ["SGD", "AdamW", "Muon", "Signs", "Noisy", "Wrapped", "NeedsClosure"]
WRONG = ["Orthogonal", "Normed", "Centred", "warming up"]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.conv = nn.Conv1d(1, 3, 2)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.conv(x.unsqueeze(1)).mean()


def set_up(name, strategy):
    """Return the finding of a setup, if any; a setup leaves optimizer and generators as they are."""
    torch.manual_seed(5)
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    session, random = Session(strategy=strategy), torch.get_rng_state()
    options = [
        {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
    ]
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    try:
        session.setup(model, optimizer)
    except PacelineError as error:
        return error.finding.name, error.finding.evidence[0]
    assert torch.equal(torch.get_rng_state(), random)
    assert not optimizer.state
    groups = optimizer.param_groups
    assert [{k: v for k, v in group.items() if k != "params"} for group in groups] == options
    for key, parameter in model.named_parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        if torch.distributed.get_rank() == 0:
            assert torch.equal(whole, before[key]), key
    return None


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    ("strategy", "world_size"),
    [("fsdp", 2), pytest.param(FSDP(replicate=2), 4, marks=pytest.mark.slow)],
)
def test_a_step_that_needs_the_whole_matrix_is_refused_on_shards(ranks, name, strategy, world_size):
    for found in ranks.run(set_up, name, strategy, world_size=world_size):
        assert found is not None
        assert found[0] == "optimizer-needs-whole-matrices"
        assert "apart by" in found[1]


def test_an_optimizer_that_fails_on_shards_is_refused_with_its_error(ranks):
    for found in ranks.run(set_up, "Adafactor", "fsdp", world_size=2):  # torch 2.13
        assert found is not None
        assert found[0] == "optimizer-needs-whole-matrices"
        assert found[1].startswith("RuntimeError: ")


@pytest.mark.parametrize("name", RIGHT)
def test_others_are_accepted(ranks, name):
    assert ranks.run(set_up, name, "fsdp", world_size=2) == [None, None]


@pytest.mark.parametrize("name", WRONG)
def test_replicas_hold_whole_matrices(ranks, name):
    assert ranks.run(set_up, name, "ddp", world_size=2) == [None, None]
    assert ranks.run(set_up, name, FSDP(replicate=2), world_size=2) == [None, None]


def train(strategy):
    # Muon computes in bfloat16, which makes rounding as large as the small singular values.
    rounded, torch.Tensor.bfloat16 = torch.Tensor.bfloat16, torch.Tensor.clone
    try:
        return trained(strategy)
    finally:
        torch.Tensor.bfloat16 = rounded


def trained(strategy):
    torch.manual_seed(5)
    model = Net().double()
    begin = {name: each.detach().clone() for name, each in model.named_parameters()}
    session = Session(precision="64-true", strategy=strategy, seed=3)
    ready, optimizer = session.setup(model, muon(model.parameters()))
    x = torch.randn(6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    for batch in session.loader(x, 3):
        session.backward(ready(batch))
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: each for name, each in model.named_parameters() if each.dim() == 2}
    return {
        name: (
            (each.full_tensor() if hasattr(each, "full_tensor") else each).detach() - begin[name]
        ).tolist()
        for name, each in weights.items()
    }


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_muon_is_that_of_one_rank_but_for_its_rounding(ranks, strategy):
    (alone,) = ranks.run(train, strategy, world_size=1)
    for found in ranks.run(train, strategy, world_size=2):
        for name, expected in alone.items():
            way, other = torch.tensor(expected), torch.tensor(found[name])
            assert (way - other).abs().max() <= 1e-10 < way.abs().max(), name


@pytest.mark.parametrize(
    ("whole", "sharded", "expected"),
    [([1.0, 2.0], [1.0, 2.0], 0.0), ([3.0, 4.0], [0.0, 0.0], 1.0), ([0.0, 0.0], [1.0, 1.0], None), ([math.nan, 1.0], [1.0, 1.0], None)],
)  # fmt: skip
def test_the_difference_is_a_part_of_the_way(whole, sharded, expected):
    start = torch.zeros(2)
    assert whole_matrix.differs(start, torch.tensor(whole), torch.tensor(sharded)) == expected
