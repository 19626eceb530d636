"""Models that do not fit one GPU, on a mesh: any layout gives what one process gives.

The user makes the model parallel with torch's own functions, or leaves it to ``session.setup``; the session shares out
the rows, weighs the losses, clips, and averages.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import TensorDataset

from paceline import Session
from ranks.parity import weights_of

LENGTH, BATCH, ACCUMULATE = 43, 5, 2  # nothing divides 43: the end of an epoch is ragged
WORDS, WIDTH, TIME = 12, 8, 4


class Block(nn.Module):
    """Attention of two heads and a feed-forward network, each around a norm."""

    def __init__(self, *, is_causal):
        super().__init__()
        self.is_causal = is_causal
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, WIDTH // 2)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleList([Block(is_causal=True) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).clone()  # of a view, torch warns once it is sharded


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.token = nn.Parameter(torch.randn(WIDTH))
        self.blocks = nn.ModuleList([Block(is_causal=False) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), 1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def words():
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(WORDS, (LENGTH, TIME + 1), generator=generator)
    return TensorDataset(ids[:, :-1], ids[:, 1:])


def images():
    generator = torch.Generator().manual_seed(7)
    pixels = torch.randn(LENGTH, 1, 4, 4, generator=generator, dtype=torch.float64)
    return TensorDataset(pixels, torch.randint(WORDS, (LENGTH,), generator=generator))


MODELS = {"gpt": (Gpt, words), "vit": (Vit, images)}
CLIPPED_AT = {"gpt": 0.5, "vit": 1.3}
OF_BLOCK = {
    **dict.fromkeys("qkv", ColwiseParallel()),
    "out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}
# The norms and the sums around them work on a part of the sequence: their gradients are summands.
OF_SEQUENCE = {
    "norm": SequenceParallel(),
    "q": ColwiseParallel(input_layouts=Shard(1)),
    "k": ColwiseParallel(input_layouts=Shard(1)),
    "v": ColwiseParallel(input_layouts=Shard(1)),
    "out": RowwiseParallel(output_layouts=Shard(1)),
    "norm2": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


def tensor_parallel(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, OF_BLOCK)
    if isinstance(model, Gpt):
        parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


def sequence_parallel(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, OF_SEQUENCE)
    ends = {
        "blocks.0": PrepareModuleInput(
            input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def make_parallel(model, mesh, layout):
    """What a user does to a model before ``setup``."""
    if "sp" in layout:
        sequence_parallel(model, mesh["tp"])
    elif "tp" in layout:
        tensor_parallel(model, mesh["tp"])
    if "sharded" in layout:
        dims = tuple(name for name in ("dp", "fsdp") if name in mesh.mesh_dim_names)
        shard(model, mesh[dims])


# Sizes of the mesh, and what the user does.
LAYOUTS = {
    "dp2": ({"dp": 2}, ""),
    "dp3": ({"dp": 3}, ""),
    "fsdp2": ({"fsdp": 2}, "sharded"),
    "fsdp2 by setup": ({"fsdp": 2}, ""),
    "dp2 fsdp2": ({"dp": 2, "fsdp": 2}, "sharded"),
    "dp2 fsdp2 by setup": ({"dp": 2, "fsdp": 2}, ""),
    "tp2": ({"tp": 2}, "tp"),
    "sp2": ({"tp": 2}, "sp"),
    "dp2 tp2": ({"dp": 2, "tp": 2}, "tp"),
    "dp2 sp2": ({"dp": 2, "tp": 2}, "sp"),
    "fsdp2 tp2": ({"fsdp": 2, "tp": 2}, "tp sharded"),
    "fsdp2 tp2 by setup": ({"fsdp": 2, "tp": 2}, "tp"),
}


def start(folder, layout, kind, **options):
    """Return a session, a model, its optimizer and a loader; on one process without a mesh."""
    mesh = {}
    if layout is not None:
        sizes, parallel = LAYOUTS[layout]
        dims = tuple(name for name in sizes if name != "tp")
        strategy = "fsdp" if "fsdp" in dims and "sharded" not in parallel else "ddp"
        mesh = {"mesh": sizes, "data": dims, "strategy": strategy}
    session = Session(
        precision="64-true",
        accumulate=ACCUMULATE,
        seed=3,
        run_dir=folder,
        loggers=(),
        **mesh,
        **options,
    )
    torch.manual_seed(5)
    build, data = MODELS[kind]
    model = build().double().to(session.device)
    if layout is not None:
        make_parallel(model, session.mesh, parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = session.setup(model, optimizer)
    return session, model, optimizer, session.loader(data(), BATCH, shuffle=True)


def train(folder, layout, kind, epochs=2, **options):
    """Return losses and norms of each step, and the weights."""
    session, model, optimizer, loader = start(folder, layout, kind, **options)
    losses, norms = [], []
    for _ in session.epochs(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
            losses.append(session.mean(loss))
            if session.backward(loss):
                norms.append(float(session.clip_grad_norm(optimizer, CLIPPED_AT[kind])))
                optimizer.step()
                optimizer.zero_grad()
    return losses, norms, weights_of(session.unwrap(model))


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory):
    """What one process gives, by model."""
    return {
        kind: ranks.run(train, str(tmp_path_factory.mktemp(kind)), None, kind, world_size=1)[0]
        for kind in MODELS
    }


def size_of(layout):
    size = 1
    for each in LAYOUTS[layout][0].values():
        size *= each
    return size


# What is promised, on gloo and in an accelerator's suite; the rest in CI, on gloo.
PROMISED = ("dp2", "dp3", "fsdp2", "dp2 fsdp2", "tp2", "dp2 tp2", "fsdp2 tp2")
CASES = [
    pytest.param(layout, kind, marks=[] if layout in PROMISED else pytest.mark.ci)
    for layout in LAYOUTS
    for kind in MODELS
    if kind == "gpt" or "sp" not in layout
]


@pytest.mark.parametrize(("layout", "kind"), CASES)
def test_a_mesh_gives_what_one_process_gives(ranks, alone, tmp_path, layout, kind):
    losses, norms, weights = alone[kind]
    assert min(norms) < CLIPPED_AT[kind] < max(norms), "some steps are clipped, and some are not"
    for found, theirs, values in ranks.run(
        train, str(tmp_path), layout, kind, world_size=size_of(layout)
    ):
        assert found == pytest.approx(losses, abs=1e-10, rel=0)
        assert theirs == pytest.approx(norms, abs=1e-10, rel=0)
        for name, expected in weights.items():
            apart = torch.tensor(values[name]).sub(torch.tensor(expected)).abs().max()
            assert apart < 1e-10, name


# A chain, and each of its layouts to the first.
JOURNEYS = [
    ("dp2", "fsdp2 tp2", "dp3", "tp2", "dp2"),
    ("fsdp2 tp2", "dp2"),
    ("tp2", "dp2"),
    ("dp3", "dp2"),
    ("fsdp2", "dp2"),
    ("dp2 fsdp2", "dp2"),
    ("dp2 tp2", "dp2"),
    ("sp2", "dp2"),
    ("dp2 fsdp2 by setup", "dp2"),
    ("fsdp2 tp2 by setup", "dp2"),
]


def go_on(folder, layout, kind, stop_after):
    """Resume, train for some batches or to the end; return the weights at the end."""
    session, model, optimizer, loader = start(folder, layout, kind)
    session.restore("latest")
    num_batches = 0
    for _ in session.epochs(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
            if session.backward(loss):
                session.clip_grad_norm(optimizer, CLIPPED_AT[kind])
                optimizer.step()
                optimizer.zero_grad()
            num_batches += 1
            if num_batches == stop_after:
                session.save(wait=True)
                return None
    return weights_of(session.unwrap(model))


@pytest.mark.ci
@pytest.mark.parametrize("journey", JOURNEYS, ids=" to ".join)
def test_a_run_goes_on_on_another_mesh(ranks, alone, tmp_path, journey):
    _, _, weights = alone["gpt"]
    *stops, last = journey
    for layout in stops:
        ranks.run(go_on, str(tmp_path), layout, "gpt", 4, world_size=size_of(layout))
    for values in ranks.run(go_on, str(tmp_path), last, "gpt", None, world_size=size_of(last)):
        for name, expected in weights.items():
            apart = torch.tensor(values[name]).sub(torch.tensor(expected)).abs().max()
            assert apart < 1e-10, name
