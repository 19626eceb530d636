"""Session in a world of one, without processes; ``tests/ranks`` has the rest."""

import copy
import itertools
import sys
from collections import OrderedDict, namedtuple
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import paceline
from paceline import Session, env
from paceline.errors import SetupError, UsageError
from paceline.machine import accelerator
from paceline.train import runtime
from paceline.world import World


@pytest.fixture(autouse=True, scope="module")
def first_optimizer():
    """Make one before any test: torch then sets an environment variable, which no test may."""
    sgd(nn.Linear(1, 1))


@pytest.fixture(autouse=True)
def unlaunched(monkeypatch):
    """Take away what a launcher around the tests would have set."""
    for variable in env.variables():
        if variable.name not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable.name, raising=False)


@pytest.fixture
def session():
    return Session()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_is_public():
    assert paceline.Session is Session


def test_a_world_of_one(session):
    assert (session.rank, session.world_size, session.local_rank, session.is_main) == (
        0,
        1,
        0,
        True,
    )
    assert session.device.type == accelerator.kind()
    assert not torch.distributed.is_initialized()


def test_one_process_without_a_launcher_says_nothing(capsys):
    Session()
    assert capsys.readouterr() == ("", "")


def test_launcher_is_read_from_the_environment(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("PACELINE_LAUNCHER", "none")
    Session()
    assert "PACELINE_LAUNCHER=none" in capsys.readouterr().err


def test_setup_returns_the_users_own_objects(session):
    model = nn.Linear(2, 1)
    optimizer, second = sgd(model), sgd(model)
    keys = list(model.state_dict())
    assert session.setup(model) is model
    assert session.setup(model, optimizer) == (model, optimizer)
    assert session.setup(model, optimizer, second) == (model, optimizer, second)
    assert session.unwrap(model) is model
    assert list(model.state_dict()) == keys


def test_no_limit_is_reported_in_a_world_of_one(session, capsys):
    capsys.readouterr()
    session.setup(nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)))
    assert capsys.readouterr().err == ""


def test_an_optimizer_of_another_model_is_refused(session):
    model = nn.Linear(2, 1)
    with pytest.raises(UsageError) as caught:
        session.setup(model, sgd(nn.Linear(2, 1)))
    assert caught.value.finding.name == "optimizer-of-other-model"
    assert caught.value.finding.what == "2 of the 2 parameters of SGD are not the model's"


def test_an_optimizer_left_behind_by_a_move_is_refused(session, monkeypatch):
    """Some moves make new parameters; an optimizer of the old ones would never change the model."""
    model = nn.Linear(2, 1)
    optimizer = sgd(model)

    def move(self, device):
        self.weight = nn.Parameter(self.weight.detach().clone())
        return self

    monkeypatch.setattr(nn.Linear, "to", move)
    with pytest.raises(UsageError, match="1 of the 2 parameters"):
        session.setup(model, optimizer)


def test_an_optimizer_of_part_of_the_model_is_fine(session):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    session.setup(model, sgd(model[1]))


def test_an_optimizer_of_two_models(session):
    encoder, decoder = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    session.setup(encoder)
    session.setup(decoder, optimizer)


def test_backward_is_that_of_the_loss(session):
    model = nn.Linear(3, 1, device=session.device)
    for x in session.loader(torch.ones(5, 3), 2):
        loss = model(x).mean()
        (expected,) = torch.autograd.grad(loss, model.weight, retain_graph=True)
        assert session.backward(loss) is True
        assert torch.equal(model.weight.grad, expected)
        model.weight.grad = None


def test_backward_without_a_loader(session):
    x = torch.tensor(2.0, requires_grad=True)
    session.backward(x * x)
    assert x.grad == 4


def test_two_live_loaders_are_announced(session, capsys, tmp_path, monkeypatch):
    """In a world of one any weight is right; the line says what several ranks refuse."""
    monkeypatch.chdir(tmp_path)
    x = torch.tensor(2.0, requires_grad=True)
    for _ in zip(session.loader(range(4), 2), session.loader(range(4), 2), strict=True):
        session.backward(x * x)
        session.save(wait=True)  # each batch of both loaders was trained on
    assert x.grad == 8
    assert capsys.readouterr().err.count("several ranks refuse it") == 1


@pytest.mark.parametrize("saves", [True, False])
def test_the_first_save_is_prepared_once_after_the_first_step(
    session, saves, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    prepared = []
    monkeypatch.setattr(
        session._checkpoints, "prepare", lambda size: prepared.append((session.step, size))
    )
    model = nn.Linear(3, 1, bias=False)
    model, optimizer = session.setup(model, torch.optim.Adam(model.parameters()))
    if saves:
        session.restore()
    for x in session.loader(torch.ones(8, 3), 2):
        session.backward(model(x).mean())
        optimizer.step()
    # the weight, its two moments and Adam's step, in float32
    assert prepared == ([(1, 4 * (3 * 3 + 1))] if saves else [])


def in_a_list(loader):
    return [list(loader)] * 2


def in_a_cycle(loader):
    batches = itertools.cycle(loader)
    return [itertools.islice(batches, 3), itertools.islice(batches, 3)]


def ahead(loader):
    batches = iter(loader)
    following = next(batches)
    for batch in batches:
        yield following
        following = batch
    yield following


# The loader has six rows in three batches; saves say after which batch a checkpoint has a position.
@pytest.mark.parametrize(
    ("epochs", "saves"),
    [
        (lambda loader: (list(loader) for _ in range(2)), [3, 6]),
        (lambda loader: [list(loader), list(loader)], [6]),
        (in_a_list, [3]),
        (in_a_cycle, [1, 2, 3]),
        (lambda loader: [ahead(loader), ahead(loader)], [1, 2, 3, 6]),
    ],
)
def test_batches_that_a_script_holds_are_trained_on(session, epochs, saves, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, seen, saved = torch.tensor(1.0, requires_grad=True), 0, []
    for epoch in epochs(session.loader(torch.arange(6.0), 2)):
        for batch in epoch:
            session.backward((x * batch).mean())
            seen += 1
            try:
                session.save(wait=True)
                saved.append(seen)
            except UsageError as error:
                assert "continue at another batch" in error.finding.what
    assert float(x.grad) == 15.0
    assert saved == saves


def test_loader_options_reach_torch(session):
    loader = session.loader(range(5), 2, shuffle=True, collate_fn=tuple)
    assert sorted(sum(loader, ())) == list(range(5))
    assert session.loader(range(5), per_rank_batch_size=3).batch_size == 3
    with pytest.raises(UsageError):
        session.loader(range(5), 2, num_workers=0, prefetch_factor=2)
    with pytest.raises(UsageError):
        session.loader(range(5))


def test_the_seed_decides_the_order():
    def order(seed):
        return [batch.tolist() for batch in Session(seed=seed).loader(range(20), 20, shuffle=True)]

    assert order(1) == order(1) != order(2)


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [0, -3, 2**80, True, 0.1, [1, 2.5], (1, [2]), {"a": 1, "b": (2.0,)}, Point(1, 2.0), [], {}, ()],
    ids=repr,
)
def test_reduce_gives_the_same_type_back(session, value):
    result = session.reduce(value)
    assert result == value
    assert type(result) is (int if value is True else type(value))


def test_reduce_of_numbers_that_are_no_python_ones(session):
    numpy = pytest.importorskip("numpy")
    assert type(session.reduce(numpy.int64(3))) is int
    assert type(session.reduce(numpy.float32(0.5))) is float


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (torch.float16, torch.float16),
        (torch.float32, torch.float32),
        (torch.complex64, torch.complex64),
        (torch.int64, torch.int64),
        (torch.uint8, torch.int64),
        (torch.bool, torch.int64),
    ],
)
def test_reduce_of_tensors(session, dtype, result):
    value = torch.ones(2, 3, dtype=dtype)
    total = session.reduce(value)
    assert total.dtype == result
    assert total.shape == (2, 3)
    total.zero_()
    assert value.all(), "the result must not share memory with the argument"


def test_reduce_cuts_the_graph(session):
    assert not session.reduce(torch.ones(1, requires_grad=True)).requires_grad


def test_reduce_of_something_else(session):
    with pytest.raises(UsageError) as caught:
        session.reduce([1, "two"])
    assert caught.value.finding.name == "option-invalid"
    assert "str" in caught.value.finding.what


def test_reduce_keeps_the_order_of_keys(session):
    assert list(session.reduce(OrderedDict(b=1, a=2))) == ["b", "a"]


def test_epochs_print_barrier(session, capsys):
    capsys.readouterr()
    assert list(session.epochs(3)) == [0, 1, 2]
    session.print("a", 1)
    session.barrier()
    assert capsys.readouterr().out == "a 1\n"


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_bad_timeout(timeout_s):
    with pytest.raises(UsageError) as caught:
        Session(timeout_s=timeout_s)
    assert caught.value.finding.name == "option-invalid"


def test_a_timeout_is_no_mistake_in_a_world_of_one():
    Session(timeout_s=60)


# The device


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that there are GPUs; returns what was made the current one."""
    seen = SimpleNamespace(count=2, current=None)
    monkeypatch.setattr("paceline.machine.accelerator.kind", lambda: "cuda")
    monkeypatch.setattr("torch.accelerator.device_count", lambda: seen.count)
    monkeypatch.setattr("torch.accelerator.set_device_index", partial(setattr, seen, "current"))
    return seen


def test_each_rank_takes_the_gpu_of_its_local_rank(gpus):
    world = World(rank=3, world_size=4, local_rank=1, local_world_size=2)
    assert runtime.take_device(world) == torch.device("cuda", 1)
    assert gpus.current == 1


def test_more_ranks_than_gpus(gpus):
    with pytest.raises(SetupError) as caught:
        runtime.take_device(World(rank=2, world_size=3, local_rank=2, local_world_size=3))
    assert caught.value.finding.name == "gpus-fewer-than-processes"
    assert gpus.current is None


def test_a_gpu_that_slurm_bound_is_number_0(gpus):
    gpus.count = 1
    world = World(rank=1, world_size=2, local_rank=1, local_world_size=2, launcher="slurm")
    assert runtime.take_device(world) == torch.device("cuda", 0)


# The end of the script


@pytest.mark.parametrize(("failed", "closed"), [(False, True), (True, False)])
def test_the_group_is_closed_unless_the_script_failed(monkeypatch, failed, closed):
    calls = []
    monkeypatch.setattr(runtime, "close_group", lambda: calls.append(True))
    monkeypatch.delattr(sys, "last_type", raising=False)
    if failed:
        monkeypatch.setattr(sys, "last_type", ValueError, raising=False)
    runtime._close_at_exit()
    assert bool(calls) is closed


def test_closing_what_was_never_opened():
    runtime.close_group()
    runtime.close_group()


# Set up again


class Watched(nn.Linear):
    """Takes down what it computes with."""

    def forward(self, x):
        y = super().forward(x)
        self.seen = (x.dtype, y.dtype)
        return y


@pytest.mark.parametrize("first", ["16-mixed", "bf16-mixed", "bf16-true", "64-true"])
def test_a_module_computes_as_the_last_session_has_it(first):
    """A second pair of hooks would be left in the order in which it was entered, and autocast stay on for good."""
    model = Watched(2, 2)
    Session(precision=first).setup(model)
    for each in (model, copy.deepcopy(model)):
        each.to(torch.float32)  # types of parameters are not taken back
        for precision, computed in (("bf16-mixed", torch.bfloat16), ("32-true", torch.float32)):
            session = Session(precision=precision)
            session.setup(each)
            each(torch.ones(1, 2, device=session.device))
            assert each.seen == (torch.float32, computed)
            assert not torch.is_autocast_enabled(session.device.type)
