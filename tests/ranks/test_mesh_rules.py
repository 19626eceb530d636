"""What a session on a mesh refuses, what its collectives count, and what its checks compare."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import TensorDataset

from paceline import DDP, FSDP, Session, env
from paceline.errors import PacelineError
from paceline.machine import accelerator

pytestmark = pytest.mark.ci

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).to(accelerator.kind())


def finding_of(deed):
    """Return the finding that a deed is refused with, as plain data."""
    try:
        deed()
    except PacelineError as error:
        return error.finding.to_json()
    return None


def with_mesh(sizes, names, data):
    kind = accelerator.kind()
    if kind != "cpu":
        torch.accelerator.set_device_index(dist.get_rank())
        torch.empty(1, device=kind)
    mesh = {
        "dict": lambda: dict(zip(names, sizes, strict=True)),
        "mesh": lambda: init_device_mesh(kind, sizes, mesh_dim_names=names),
    }["mesh" if names is None or (-1 not in sizes and 5 not in sizes) else "dict"]()
    return finding_of(lambda: Session(mesh=mesh, data=data, loggers=()))


@pytest.mark.parametrize(
    ("sizes", "names", "data", "what", "fix"),
    [
        ((2,), ("tp",), "dp", "the mesh has no dimension 'dp': it is tp 2", "data='tp'"),
        ((2,), None, "dp", "the dimensions of the mesh have no names", "mesh_dim_names=("),
        ((5,), ("dp",), "dp", "a mesh of {'dp': 5} does not hold 2 ranks", "start 5 ranks"),
        ((-1, -1), ("dp", "tp"), "dp", "does not hold 2 ranks", "one of them may be -1"),
        ((-1, 5), ("dp", "tp"), "dp", "does not hold 2 ranks", "start 5 ranks, or a multiple"),
    ],
)
def test_a_mesh_that_says_too_little_is_refused(ranks, sizes, names, data, what, fix):
    for found in ranks.run(with_mesh, sizes, names, data, world_size=2):
        assert what in found["what"]
        assert fix in found["fix"]


def in_another_order():
    mesh = DeviceMesh(accelerator.kind(), [1, 0], mesh_dim_names=("dp",))
    return finding_of(lambda: Session(mesh=mesh, loggers=()))


@pytest.mark.cpu
def test_ranks_in_another_order_are_refused(ranks):
    for found in ranks.run(in_another_order, world_size=2):
        assert "number" in found["what"]
        assert "init_device_mesh" in found["fix"]


def set_up(how):
    session = Session(
        mesh={"dp": 2, "tp": 2}, seed=0, loggers=(), strategy=DDP(static_graph=how == "options")
    )
    model = net()
    if how in ("partly", "options"):
        parallelize_module(model, session.mesh["tp"], PLAN)
    if how == "partly":
        fully_shard(model[0], mesh=session.mesh["dp"])
    if how == "by hand":
        with torch.no_grad():
            model[0].weight += session.mesh.get_local_rank("tp")
    if how == "without fully_shard":
        for name, one in list(model[0].named_parameters()):
            copied = distribute_tensor(one, session.mesh["dp"], [Replicate()])
            model[0].register_parameter(name, nn.Parameter(copied))
        for name, one in list(model[2].named_parameters()):
            copied = distribute_tensor(one, session.mesh["dp"], [Replicate()])
            model[2].register_parameter(name, nn.Parameter(copied))
    return finding_of(lambda: session.setup(model))


@pytest.mark.parametrize(
    ("how", "what", "fix"),
    [
        (
            "partly",
            "0.weight is sharded over dp, and 2.weight is not on dp",
            "fully_shard(model, mesh=mesh['dp'])",
        ),
        ("options", "takes no tensor-parallel model", 'strategy="ddp"'),
        ("by hand", "no parameter is a DTensor", "DTensor.from_local"),
        (
            "without fully_shard",
            "fully_shard was not called",
            "fully_shard(model, mesh=mesh['dp'])",
        ),
    ],
)
def test_a_model_whose_gradients_nobody_would_average_is_refused(ranks, how, what, fix):
    for found in ranks.run(set_up, how, world_size=4):
        assert what in found["what"]
        assert fix in found["fix"]


def count():
    session = Session(mesh={"dp": 2, "tp": 2}, seed=0, loggers=())
    loader = session.loader(TensorDataset(torch.arange(6.0)), 3, shuffle=False)
    seen = []
    for (x,) in loader:
        seen.append(session.gather(x).tolist())
        total = session.reduce(float(x.sum()))
        draws = session.gather(session.draws.rand()).tolist()
        mean = session.mean(x.mean())
    drawn = torch.rand(1).item()
    return session.rank, session.world_size, seen, total, mean, draws, drawn


def test_peers_see_the_same_rows_and_count_once(ranks):
    results = ranks.run(count, world_size=4)
    assert [result[:2] for result in results] == [(rank, 4) for rank in range(4)]
    for _, _, seen, total, mean, draws, _ in results:
        assert seen == [[0, 1, 2], [3, 4, 5]]
        assert (total, mean) == (12, 4)
        assert draws == results[0][5]
    drawn = [result[6] for result in results]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3], "dropout masks are those of the rows"


def without_a_launcher():
    session = Session(mesh={"dp": -1, "tp": 1}, seed=0, loggers=())
    model = net()
    parallelize_module(model, session.mesh["tp"], PLAN)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.ones(2, 4, device=session.device)
    session.backward(model(x).square().mean())
    session.clip_grad_norm(optimizer, 0.1)
    optimizer.step()
    return [tuple(one.shape) for one in model.parameters()]


def test_the_same_script_runs_as_one_process(ranks):
    (shapes,) = ranks.run(without_a_launcher, world_size=1)
    assert shapes == [(8, 4), (8,), (4, 8), (4,)]


def as_reference():
    os.environ[env.VERIFY] = "1"
    try:
        return list(Session(mesh={"dp": 2, "tp": 2}, loggers=()).mesh.shape)
    finally:
        del os.environ[env.VERIFY]


def test_the_reference_of_verify_has_a_mesh_of_one(ranks):
    assert ranks.run(as_reference, world_size=1) == [[1, 1]]


def drift(rank, name):
    """Change a parameter on one rank after the first step; return the finding of the check."""
    session = Session(mesh={"dp": 2, "tp": 2}, seed=0, loggers=())
    model = net()
    parallelize_module(model, session.mesh["tp"], PLAN)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def steps():
        for number in range(3):
            x = torch.ones(2, 4, device=session.device)
            session.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if number == 0 and session.rank == rank:
                with torch.no_grad():
                    model.get_parameter(name).to_local().add_(1.0)

    return finding_of(steps)


@pytest.mark.parametrize(("rank", "name"), [(2, "0.weight"), (3, "2.weight"), (None, "0.weight")])
def test_copies_of_a_shard_are_compared(ranks, rank, name):
    for found in ranks.run(drift, rank, name, world_size=4):
        if rank is None:
            assert found is None
        else:
            assert (found["name"], found["evidence"][0]) == ("replicas-differ", f"first: {name}")


def overflow(layout, strategy="ddp"):
    """Train in float16 with an overflow at the second step; return the scale and the weights."""
    session = Session(mesh=layout, strategy=strategy, precision="16-mixed", seed=0, loggers=())
    model = net()
    if "tp" in layout:
        parallelize_module(model, session.mesh["tp"], PLAN)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    kept = []
    for number in range(3):
        x = torch.ones(2, 4, device=session.device) * (1e30 if number == 1 else 1)
        session.backward(model(x).square().mean())
        kept.append(next(iter(model.parameters())).grad is not None)
        session.clip_grad_value(optimizer, 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return (
        kept,
        session._gradients.scale.value,
        [
            (one.full_tensor() if hasattr(one, "full_tensor") else one).tolist()
            for one in model.parameters()
        ],
    )


def test_a_step_that_overflows_is_skipped_on_all_ranks(ranks):
    expected = ranks.run(overflow, {"dp": 2}, world_size=2)[0]
    assert expected[0] == [True, False, True]
    whole_beside_shards = FSDP(ignored_params={"2"})
    for kept, scale, weights in [
        *ranks.run(overflow, {"dp": 2, "tp": 2}, world_size=4),
        *ranks.run(overflow, {"dp": 2}, whole_beside_shards, world_size=2),
    ]:
        assert (kept, scale) == expected[:2]
        for ours, theirs in zip(weights, expected[2], strict=True):
            torch.testing.assert_close(
                torch.tensor(ours), torch.tensor(theirs), rtol=1e-3, atol=1e-3
            )
