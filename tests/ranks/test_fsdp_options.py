"""Options of fsdp, and models on the meta device: none changes what is trained, on any number of ranks."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, x):
        return x + self.attention(x, x, x)[0]


class Attention(nn.Module):
    """Has parameters of its own beside its parts, a buffer, and a weight that two parts share."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Mixing()])
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
            x = block(x.unsqueeze(0)).squeeze(0)
        return self.head(x).mean(1, keepdim=True)


MODELS = {"net": Net, "attention": Attention}


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
    name, _, device = kind.partition(" on ")
    with torch.device(device or "cpu"):
        return MODELS[name]()


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
    session.save(wait=True)
    return losses + norms, weights, mesh_of(model)


def compare(results, expected):
    parity.check([found[:2] for found in results], expected[:2])


STRATEGIES = {
    "two replicas": FSDP(replicate=2),
    "offloaded": FSDP(offload=True),
    "a part whole": FSDP(ignored_params={"head"}),
    "replicas and a part whole": FSDP(replicate=2, ignored_params={"blocks.1.first.weight"}),
}


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_options_change_nothing(ranks, tmp_path, name, accumulate):
    arguments = (STRATEGIES[name], "net", "one forward", accumulate)
    (alone,) = ranks.run(train, str(tmp_path / "1"), *arguments, world_size=1)
    assert alone[2] is None
    world_size, shape = (2, (2,)) if STRATEGIES[name].replicate == 1 else (4, (2, 2))
    found = ranks.run(train, str(tmp_path / "several"), *arguments, world_size=world_size)
    compare(found, alone)
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
        pytest.param(
            [(2, FSDP(offload=True, ignored_params={"head"})), (4, FSDP(replicate=2))],
            marks=pytest.mark.slow,
        ),
        [(1, "ddp"), (4, FSDP(replicate=2, ignored_params={"scale"}))],
        pytest.param([(4, FSDP(replicate=4)), (1, "ddp")], marks=pytest.mark.slow),
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


@pytest.mark.parametrize(
    ("model", "strategy", "world_size"),
    [
        ("net", "ddp", 2),
        ("net", "fsdp", 2),
        ("net", FSDP(replicate=2, offload=True), 4),
        ("net", FSDP(layers=(nn.Linear,), ignored_params={"head.weight"}), 3),
        ("attention", "ddp", 2),
        ("attention", "fsdp", 2),
    ],
)
def test_a_model_on_the_meta_device_gets_the_values_of_one_rank(
    ranks, tmp_path, model, strategy, world_size
):
    kind = f"{model} on meta"
    (alone,) = ranks.run(train, str(tmp_path / "1"), "ddp", kind, world_size=1)
    found = ranks.run(train, str(tmp_path / "2"), strategy, kind, world_size=world_size)
    compare(found, alone)


def values(kind):
    model = build(kind)
    Session(precision="64-true").setup(model)
    return {name: value.tolist() for name, value in model.named_parameters()}


@pytest.mark.parametrize("model", list(MODELS))
def test_values_given_at_setup_are_of_the_right_size_and_tied_as_before(model):
    on_meta, as_built = values(f"{model} on meta"), values(model)
    assert on_meta.keys() == as_built.keys()
    for name, expected in as_built.items():
        spread, usual = torch.tensor(on_meta[name]).abs().max(), torch.tensor(expected).abs().max()
        assert spread <= 3 * usual, name
        assert (spread == 0) == (usual == 0), name


class Forgets(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.blocks[0](x) * self.scale


class SetsParts(Forgets):
    """Sets the weights of its layers, as many do in one place."""

    def reset_parameters(self):
        nn.init.ones_(self.scale)
        for block in self.blocks:
            nn.init.normal_(block.first.weight)


class SetsHalf(Forgets):
    def reset_parameters(self):
        pass


KINDS = {"forgets": Forgets, "sets parts": SetsParts, "sets half": SetsHalf, "net": Net}


def refused(kind, strategy, precision="32-true"):
    try:
        session = Session(strategy=strategy, precision=precision)
        with torch.device("cpu" if kind == "net" else "meta"):
            model = KINDS[kind]()
        session.setup(model)
    except PacelineError as error:
        return error.finding.name, error.finding.what, error.finding.fix
    return None


HALF = MixedPrecisionPolicy(param_dtype=torch.float16)
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.mark.parametrize(
    ("kind", "strategy", "precision", "what", "fix"),
    [
        ("net", FSDP(replicate=0), "32-true", "not a number of replicas", "FSDP(replicate=2)"),
        ("net", FSDP(replicate=2), "32-true", "3 ranks cannot be divided", "FSDP(replicate=1)"),
        ("net", FSDP(mixed_precision="bf16"), "32-true", "not a policy", "torch.distributed"),
        ("net", FSDP(mixed_precision=BF16), "bf16-mixed", "both say", "leave out one"),
        ("net", FSDP(mixed_precision=HALF), "32-true", "no loss scale", 'Session(precision="16'),
        ("net", FSDP(ignored_params={"haed"}), "32-true", "no parameter 'haed'", "FSDP(ignored"),
        ("forgets", "fsdp", "32-true", "sets scale of Forgets: it has no", "a method reset"),
        ("sets half", "fsdp", "32-true", "reset_parameters does not set it", "a method reset"),
        ("sets parts", "fsdp", "32-true", "such as blocks.0.first.weight", "initialize them in"),
    ],
)
def test_what_does_not_fit_is_refused_on_all_ranks(ranks, kind, strategy, precision, what, fix):
    for found in ranks.run(refused, kind, strategy, precision, world_size=3):
        assert found is not None
        assert found[0] in ("option-invalid", "option-contradicted")
        assert what in found[1]
        assert found[2].startswith(fix)


@pytest.mark.parametrize("strategy", [FSDP(replicate=3), FSDP(mixed_precision=BF16)])
def test_one_rank_takes_every_option(strategy):
    assert refused("net", strategy) is None


def at_once(name):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), **{name: True} if name else {})
    try:
        Session(strategy=FSDP(ignored_params={"head"})).setup(model, optimizer)
    except PacelineError as error:
        return error.finding.where
    return None


@pytest.mark.parametrize("name", ["foreach", "fused", ""])
def test_a_step_of_all_at_once_does_not_fit_whole_parameters_beside_shards(ranks, name):
    where = "session.setup(model, optimizer)" if name else None
    assert ranks.run(at_once, name, world_size=2) == [where] * 2


def one_step(by_hand):
    """Return whole gradients and the type of a layer's output, under a policy that computes in bfloat16."""
    torch.manual_seed(5)
    model, outputs = Net(), []
    model.blocks[0].second.register_forward_hook(lambda *found: outputs.append(found[2].dtype))
    x, y = (part.float() for part in parity.rows())
    x, y = (part[torch.distributed.get_rank() : 40 : 2] for part in (x, y))
    if by_hand:
        for layer in (*model.blocks, model):
            fully_shard(layer, mp_policy=BF16)
        nn.functional.mse_loss(model(x), y).backward()
    else:
        session = Session(strategy=FSDP(mixed_precision=BF16), run_dir="run")
        session.setup(model)
        session.backward(nn.functional.mse_loss(model(x), y))
    grads = {name: each.grad.full_tensor() for name, each in model.named_parameters()}
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    return {name: grad.tolist() for name, grad in grads.items()}, str(outputs[0])


def test_a_policy_of_types_is_torchs(ranks):
    by_hand = ranks.run(one_step, True, world_size=2)
    assert ranks.run(one_step, False, world_size=2) == by_hand
    assert by_hand[0][1] == "torch.bfloat16"


class Task(Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch):
        return parity.mse(self.net, batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.02)


def fit(folder, strategy, device):
    torch.manual_seed(5)
    with torch.device(device):
        task = Task()
    trainer = Trainer(
        run_dir=folder,
        strategy=strategy,
        precision="64-true",
        max_epochs=2,
        seed=1,
        enable_progress_bar=False,
        gradient_clip_val=0.3,
    )
    trainer.fit(task, DataLoader(TensorDataset(*parity.rows()), parity.BATCH, shuffle=True))
    return [], parity.weights_of(task)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_trainer_takes_the_same_options(ranks, tmp_path, device):
    strategy = FSDP(replicate=2, ignored_params={"net.head"})
    (alone,) = ranks.run(fit, str(tmp_path / "1"), "ddp", device, world_size=1)
    for _, weights in ranks.run(fit, str(tmp_path / "4"), strategy, device, world_size=4):
        for name, expected in alone[1].items():
            difference = torch.tensor(weights[name]) - torch.tensor(expected)
            assert difference.abs().max() <= parity.TOLERANCE, name
