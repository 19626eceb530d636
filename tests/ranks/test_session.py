"""Session on real gloo ranks: the number of processes is not a hyperparameter."""

import itertools
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from paceline import Session
from paceline.errors import UsageError
from paceline.train import runtime

WORLDS = (1, 2, 3, 4)
SEVERAL = (2, 3, 4)


def regression(length, *, dtype=torch.float64):
    """A dataset of images and targets, the same on all ranks."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(length, 2, 4, 4, generator=generator, dtype=dtype)
    return TensorDataset(
        x, x.square().mean((1, 2, 3), keepdim=True).flatten(1), torch.arange(length)
    )


def net(*extra):
    """A small convolutional net in float64."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        *extra,
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 1),
    ).double()


def everything(model):
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


# Evaluation


def evaluate():
    """Return for each length and batch size: the count of all ranks, and this rank's ids by batch."""
    session = Session()
    found = {}
    for length, batch_size in itertools.product(range(1, 18), range(1, 6)):
        shares = [ids.tolist() for _, _, ids in session.loader(regression(length), batch_size)]
        found[length, batch_size] = session.reduce(sum(map(len, shares))), shares
    return found


@pytest.mark.parametrize("world_size", WORLDS)
def test_evaluation_is_exact(ranks, world_size):
    results = ranks.run(evaluate, world_size=world_size)
    for (length, batch_size), (count, _) in results[0].items():
        assert {result[length, batch_size][0] for result in results} == {length} == {count}
        batches = zip(*(result[length, batch_size][1] for result in results), strict=True)
        assert list(itertools.chain(*itertools.chain(*batches))) == list(range(length))


def evaluate_on_rank_0_only():
    session = Session()
    model = net(nn.BatchNorm2d(3))
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y, _ in session.loader(regression(12), 4):
        session.backward((model(x) - y).square().mean())
        optimizer.step()
        if session.is_main:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
    return session.reduce(1)


def test_an_evaluation_forward_is_no_collective(ranks):
    assert ranks.run(evaluate_on_rank_0_only, world_size=2) == [2, 2]


# Buffers


class Counter(nn.Module):
    """A buffer that is replaced, not written to, and one that is no number of the model's type."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean = self.mean * 0.5 + x.detach().sum((0, 2, 3)) * 0.5
            self.rows += len(x)
        return x


def train_with_buffers(length):
    session = Session()
    torch.manual_seed(session.rank)
    model = net(nn.BatchNorm2d(3), Counter())
    model[1].running_mean.fill_(session.rank)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    start = session.unwrap(model)[1].running_mean.tolist()
    for x, y, _ in session.loader(regression(length), 8, shuffle=True):
        session.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    plain = session.unwrap(model)
    return (
        start,
        {name: buffer.tolist() for name, buffer in plain.named_buffers()},
        everything(plain),
    )


@pytest.mark.parametrize("world_size", SEVERAL)
def test_buffers_are_equal_after_training(ranks, world_size):
    results = ranks.run(train_with_buffers, 33, world_size=world_size)
    start, buffers, _ = results[0]
    assert start == [0.0, 0.0, 0.0], "all start from rank 0's"
    assert buffers["1.num_batches_tracked"] == 5
    assert buffers["2.rows"] == sum(-(-rows // world_size) for rows in (8, 8, 8, 8, 1)), (
        "rank 0's own"
    )
    assert all(result == results[0] for result in results)
    assert not any(value != value for value in buffers["1.running_var"]), (
        "NaN from a rank without rows"
    )


def train_two_models():
    """As in a GAN: the second backward goes through a graph that is older than the first."""
    session = Session()
    generator, critic = (
        session.setup(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) for _ in range(2)
    )
    for x in session.loader(
        torch.randn(6, 2, generator=torch.Generator().manual_seed(session.rank)), 6
    ):
        made = generator(x)
        session.backward(critic(made.detach()).square().sum(1).sub(1).mean())
        session.backward(critic(made).square().sum(1).mean())
    return [everything(each) for each in (generator, critic)]


def test_buffers_may_be_held_by_another_backward(ranks):
    main, other = ranks.run(train_two_models, world_size=2)
    assert main == other


# User objects come back as they are


def set_up():
    session = Session()
    model = net()
    model.nickname = "own attribute"
    keys, parameters = list(model.state_dict()), list(model.parameters())
    optimizer, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    wrapped, same, also = session.setup(model, optimizer, second)
    torch.manual_seed(session.rank)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    return {
        "optimizer": same is optimizer and also is second,
        "DDP": isinstance(wrapped, DistributedDataParallel),
        "unwrapped": session.unwrap(wrapped) is model and model.nickname == "own attribute",
        "keys": list(session.unwrap(wrapped).state_dict()) == keys,
        "parameters": all(a is b for a, b in zip(model.parameters(), parameters, strict=True)),
        "alone": isinstance(session.setup(net()), DistributedDataParallel),
        "frozen": session.setup(frozen) is frozen and session.unwrap(frozen) is frozen,
        "frozen from rank 0": len(set(map(str, gathered(frozen.weight.tolist())))) == 1,
        "wrapped already": refused(lambda: session.setup(wrapped)) == "option-contradicted",
    }


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def refused(call):
    try:
        call()
    except UsageError as error:
        return error.finding.name
    return None


def test_setup(ranks):
    for result in ranks.run(set_up, world_size=2):
        assert result == dict.fromkeys(result, True)


def told(*modules):
    """Return what is printed on this rank about a model that trains."""
    import contextlib
    import io

    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        session = Session()
        session.setup(net(*modules))
        session._gradients.limits.note_models(session._gradients.models)
    return stream.getvalue()


def told_of_dropout():
    return told(nn.Dropout(0.1), nn.BatchNorm2d(3))


def told_of_nothing():
    return told(nn.Dropout(0.0), nn.GroupNorm(1, 3))


@pytest.mark.cpu
def test_limits_are_reported_on_rank_0_only_where_they_apply(ranks):
    main, other = ranks.run(told_of_dropout, world_size=2)
    assert other == ""
    first, limit = main.splitlines()
    assert first == (
        "paceline: launcher none (the default process group was already initialised); 2 ranks over gloo; rank 0 on cpu"
    )
    assert "batch norm" in limit
    assert "dropout" in limit
    main, _ = ranks.run(told_of_nothing, world_size=2)
    assert len(main.splitlines()) == 1


# Reduce


def reduce_values():
    session = Session()
    rank = session.rank
    mixed = {"a": 1, "b": 10} if rank else {"b": 10, "a": 1}  # in another order on rank 0
    return [
        session.reduce(2**62 + rank),
        session.reduce(-(2**70)),
        session.reduce(0.1 * (rank + 1)),
        session.reduce(rank == 0),
        session.reduce((rank, [1.0], {"x": -1})),
        session.reduce(mixed),
        session.reduce(torch.full((2,), 200 + rank, dtype=torch.uint8)).tolist(),
        session.reduce(torch.arange(6.0).reshape(2, 3).t()).tolist(),
    ]


@pytest.mark.parametrize("world_size", WORLDS)
def test_reduce(ranks, world_size):
    triangle = world_size * (world_size - 1) // 2
    assert (
        ranks.run(reduce_values, world_size=world_size)
        == [
            [
                2**62 * world_size + triangle,
                -(2**70) * world_size,
                pytest.approx(0.1 * (triangle + world_size), abs=1e-15),
                1,
                (triangle, [1.0 * world_size], {"x": -world_size}),
                {"a": world_size, "b": 10 * world_size},
                [200 * world_size + triangle] * 2,
                [
                    [0.0, 3.0 * world_size],
                    [world_size, 4.0 * world_size],
                    [2.0 * world_size, 5.0 * world_size],
                ],
            ]
        ]
        * world_size
    )


# Weights


def evaluate_within():
    """Train on uneven batches with an evaluation between batch and backward; return the gradients."""
    session = Session()
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    model = nn.Module()
    model.weight = weight
    model.forward = lambda x: x * weight
    model = session.setup(model)
    data = torch.arange(1.0, 8.0, dtype=torch.float64)  # in batches of 4: 1 2 3 4, 5 6 7
    val = session.loader(torch.arange(9), 2)
    gradients = []
    for x in session.loader(data, 4):
        loss = model(x).mean()
        for _ in val:
            pass
        for _ in val:
            break
        session.backward(loss)
        gradients.append(weight.grad.item())
        weight.grad = None
    return gradients


@pytest.mark.parametrize("world_size", WORLDS)
def test_gradient_is_that_of_the_mean_over_the_batch(ranks, world_size):
    for gradients in ranks.run(evaluate_within, world_size=world_size):
        assert gradients == pytest.approx([2.5, 6.0], abs=1e-12)


# The process group


def adopt():
    session, group = Session(), dist.group.WORLD
    runtime.close_group()
    left_open = dist.is_initialized() and dist.group.WORLD is group
    return session.world_size, session.local_rank, left_open, refused(lambda: Session(timeout_s=30))


def test_a_group_that_was_found_is_used_and_left_open(ranks):
    expected = [(3, rank, True, "option-contradicted") for rank in range(3)]
    assert ranks.run(adopt, world_size=3) == expected


def open_and_close():
    session, group = Session(timeout_s=30), dist.group.WORLD
    again = Session()
    found = [session.reduce(1), session.local_rank, again.world_size, dist.group.WORLD is group]
    for _ in range(2):
        runtime.close_group()
    return [*found, dist.is_initialized()]


def test_a_group_of_our_own_is_opened_once_and_closed(ranks):
    expected = [[2, rank, 2, True, False] for rank in range(2)]
    for _ in range(2):
        assert ranks.run(open_and_close, world_size=2, launched=True) == expected


AT_THE_END = """
import atexit
import torch.distributed as dist
atexit.register(lambda: print("open", dist.is_initialized()))  # runs after what is registered later
"""

SUCCEEDS = """
import torch
from paceline import Session

session = Session(timeout_s=30)
model = session.setup(torch.nn.Linear(2, 1))
for x in session.loader(torch.ones(5, 2), 2):
    session.backward(model(x).mean())
print("sum", session.reduce(session.rank))
"""

FAILS = """
from paceline import Session

session = Session(timeout_s=30)
if session.rank == 1:
    raise ValueError("as users do")
session.reduce(1)
"""


def run_script(script, port):
    """Run a script as two ranks; returns their exit codes and what they wrote to stdout and stderr."""
    variables = {
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", AT_THE_END + script],
            env=os.environ
            | {name: str(v) for name, v in (variables | {"RANK": r, "LOCAL_RANK": r}).items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    outputs = [process.communicate(timeout=50) for process in processes]
    # torch 2.8 says on stdout whom gloo has connected
    printed = tuple(re.sub(r"^\[Gloo\].*\n", "", out, flags=re.MULTILINE) for out, _ in outputs)
    return [process.returncode for process in processes], printed, tuple(err for _, err in outputs)


@pytest.mark.cpu
def test_the_end_of_a_script_closes_the_group(port):
    codes, out, (main, other) = run_script(SUCCEEDS, port)
    assert codes == [0, 0], main + other
    assert out == ("sum 1\nopen False\n",) * 2
    assert main.startswith(
        "paceline: launcher torchrun (RANK and WORLD_SIZE=2 are set by torchrun); 2 ranks"
    )
    assert main.splitlines()[1].startswith("paceline: loader: batches of 2, 1 a rank")
    assert main.splitlines()[2].startswith("paceline: result: ranks agree (2 checks to step 2) ·")
    assert (main.count("\n"), other.count("\n")) == (3, 1)
    assert other.startswith("paceline: rank 1: this rank has no row of a batch"), (
        "nobody else can say it"
    )


def test_a_script_that_fails_ends(port):
    codes, out, (main, other) = run_script(FAILS, port)
    assert codes == [1, 1]
    assert out == ("open True\n",) * 2, "closing could wait for ranks that never come"
    assert "ValueError: as users do" in other
    assert "Error" in main, "rank 0 learns of it in its collective, not by a timeout"
