"""Options of fsdp, and models on the meta device: none changes what is trained, on any number of ranks."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, TensorDataset

from paceline import FSDP, Module, Session, Trainer
from paceline.errors import PacelineError
from ranks import parity
from ranks.parity import WIDTH

pytestmark = pytest.mark.ci


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Net(nn.Module):
    """Blocks, a head, and a scale of its own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(WIDTH, 1)
        self.scale = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.scale, 0.5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


class Attention(nn.Module):
    """Has parameters of its own beside its parts, a buffer, and a weight that two parts share."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2, batch_first=True)])
        self.first = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight
        self.register_buffer("table", torch.empty(WIDTH), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        with torch.no_grad():
            self.table.copy_(torch.arange(WIDTH) / WIDTH)

    def forward(self, x):
        x = self.first(x) + self.table
        for block in self.blocks:
            x = x + block(x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0))[0].squeeze(0)
        return self.head(x).mean(1, keepdim=True)


MODELS = {"net": Net, "meta": Net, "attention": Attention}


def mesh_of(model):
    parameter = next(iter(model.blocks.parameters()))
    return tuple(parameter.device_mesh.shape) if hasattr(parameter, "device_mesh") else None


def doubled(model, batch):
    """A loss of two forwards before one backward."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y) + nn.functional.mse_loss(model(x / 2), y)


LOSSES = {"one forward": parity.mse, "two forwards": doubled}


def build(kind):
    torch.manual_seed(5)
    if kind == "meta":
        with torch.device("meta"):
            return MODELS["meta"]()
    return MODELS[kind]()


def train(folder, strategy, kind="net", loss="one forward", accumulate=1, restore=False):
    """Train with clipping on data that nothing divides; return losses and norms, weights, and the mesh."""
    session = parity.session_of(folder, strategy=strategy, accumulate=accumulate)
    model = build(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ready, optimizer = session.setup(model, optimizer)
    loader = session.loader(TensorDataset(*parity.rows()), parity.BATCH, shuffle=True)
    if restore:
        session.restore("latest")
    norms = []
    losses, weights = parity.train(
        session,
        ready,
        optimizer,
        loader,
        LOSSES[loss],
        watch=lambda own: nn.functional.mse_loss(own(parity.rows()[0]), parity.rows()[1]),
        epochs=4 if restore else 2,
        before_step=lambda: norms.append(float(session.clip_grad_norm(ready, 0.3))),
    )
    session.save()
    return losses + norms, weights, mesh_of(model)


def compare(results, expected):
    parity.check([found[:2] for found in results], expected[:2])


STRATEGIES = {
    "two replicas": FSDP(replicate=2),
    "offloaded": FSDP(offload=True),
    "a part whole": FSDP(ignored_params={"head"}),
    "replicas and a part whole": FSDP(replicate=2, ignored_params={"blocks.1.first.weight"}),
}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_options_change_nothing(ranks, tmp_path, name, accumulate):
    arguments = (STRATEGIES[name], "net", "one forward", accumulate)
    (alone,) = ranks.run(train, str(tmp_path / "1"), *arguments, world_size=1)
    assert alone[2] is None
    replicas = STRATEGIES[name].replicate
    for world_size in (2, 4):
        found = ranks.run(train, str(tmp_path / str(world_size)), *arguments, world_size=world_size)
        compare(found, alone)
        shape = (world_size,) if replicas == 1 else (replicas, world_size // replicas)
        assert {each[2] for each in found} == {shape}


@pytest.mark.parametrize("strategy", ["fsdp", FSDP(replicate=2, reshard_after_forward=False)])
def test_several_forwards_before_a_backward(ranks, tmp_path, strategy):
    arguments = (strategy, "net", "two forwards")
    (alone,) = ranks.run(train, str(tmp_path / "1"), *arguments, world_size=1)
    compare(ranks.run(train, str(tmp_path / "2"), *arguments, world_size=2), alone)


@pytest.mark.parametrize(
    "strategies",
    [
        [(4, FSDP(replicate=2)), (2, "fsdp")],
        [(2, FSDP(offload=True, ignored_params={"head"})), (4, FSDP(replicate=2))],
        [(1, "ddp"), (4, FSDP(replicate=2, ignored_params={"scale"}))],
        [(4, FSDP(replicate=4)), (1, "ddp")],
    ],
)
def test_a_training_goes_on_under_another_strategy(ranks, tmp_path, strategies):
    arguments = ("ddp", "net")
    (begun,) = ranks.run(train, str(tmp_path / "whole"), *arguments, world_size=1)
    (alone,) = ranks.run(
        *(train, str(tmp_path / "whole"), *arguments, "one forward", 1, True), world_size=1
    )
    (first, strategy), (second, other) = strategies
    folder = str(tmp_path / "run")
    compare(ranks.run(train, folder, strategy, world_size=first), begun)
    arguments = (folder, other, "net", "one forward", 1, True)
    compare(ranks.run(train, *arguments, world_size=second), alone)
