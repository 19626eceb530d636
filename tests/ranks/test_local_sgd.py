"""Local SGD on real gloo ranks: what it computes, what others see of it, and what a checkpoint holds."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from paceline import DDP, LocalSGD, Session, Trainer
from paceline.errors import PacelineError
from paceline.launch.probe.replicas import checksums
from paceline.train.model.local_sgd import in_common

WORLDS = (1, 2, 3)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def rows(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, 4, generator=generator, dtype=torch.float64)
    return x, (x.sum(dim=1, keepdim=True) ** 2)


def values(model):
    """Return this rank's own parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def outer_values(model):
    return torch.cat([in_common(parameter).detach().flatten() for parameter in model.parameters()])


def session_of(strategy, folder=None, **options):
    return Session(
        precision="64-true", seed=1, strategy=strategy, run_dir=folder, loggers=(), **options
    )


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, weight_decay=0.01)


# What it computes


def train_uneven(strategy, accumulate):
    """Train on batches that no number of ranks divides; the last has fewer rows than three ranks."""
    session = session_of(strategy, accumulate=accumulate)
    model = net()
    model, optimizer = session.setup(model, sgd(model))
    loader = session.loader(TensorDataset(*rows(37)), 5, shuffle=True)
    for _ in range(3):
        for x, y in loader:
            if session.backward(nn.functional.mse_loss(model(x), y)):
                optimizer.step()
                optimizer.zero_grad()
    return values(session.unwrap(model)).tolist()


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_step_and_the_mean_are_synchronous_training(ranks, world_size, accumulate):
    (expected,) = ranks.run(train_uneven, "ddp", accumulate, world_size=1)
    strategy = LocalSGD(every=1, outer="average")
    for found in ranks.run(train_uneven, strategy, accumulate, world_size=world_size):
        assert found == pytest.approx(expected, abs=1e-10, rel=0)


def train_apart(strategy, steps):
    """Train on rows of each rank's own, without a loader; return own and outer parameters after each step."""
    session = session_of(strategy)
    model = net()
    model, optimizer = session.setup(model, sgd(model))
    found = []
    for step in range(steps):
        x, y = rows(8, seed=10 * step + session.rank)
        session.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        found.append((values(model), outer_values(model)))
    return found


def simulate(world_size, steps, *, every, lr, momentum):
    """Algorithm 1 of DiLoCo in one process, in torch's own SGD; returns the parameters after each step."""
    models = [net() for _ in range(world_size)]
    optimizers = [sgd(model) for model in models]
    outer = nn.Parameter(values(models[0]).clone())
    outer_optimizer = torch.optim.SGD([outer], lr=lr, momentum=momentum, nesterov=bool(momentum))
    found = []
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            x, y = rows(8, seed=10 * step + rank)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        if (step + 1) % every == 0:
            mean = torch.stack([values(model) for model in models]).mean(dim=0)
            outer.grad = outer.detach() - mean
            outer_optimizer.step()
            for model in models:
                nn.utils.vector_to_parameters(outer.detach().clone(), model.parameters())
        found.append(([values(model) for model in models], outer.detach().clone()))
    return found


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize(
    ("strategy", "lr", "momentum"),
    [
        (LocalSGD(every=3), 0.7, 0.9),
        (LocalSGD(every=3, lr=0.5, momentum=0.0), 0.5, 0.0),
        (LocalSGD(every=2, outer="average"), 1.0, 0.0),
    ],
)
def test_the_outer_step_is_that_of_the_paper(ranks, world_size, strategy, lr, momentum):
    expected = simulate(world_size, 8, every=strategy.every, lr=lr, momentum=momentum)
    for rank, found in enumerate(ranks.run(train_apart, strategy, 8, world_size=world_size)):
        for (own, outer), (all_own, their_outer) in zip(found, expected, strict=True):
            assert torch.allclose(own, all_own[rank], atol=1e-12, rtol=0)
            assert torch.allclose(outer, their_outer, atol=1e-12, rtol=0)


def count_collectives(every, steps):
    """Return how many collectives there were in each step."""
    calls, originals = [], {name: getattr(dist, name) for name in ("all_reduce", "broadcast")}

    def counting(name):
        def counted(*args, **kwargs):
            if calls:
                calls[-1] += 1
            return originals[name](*args, **kwargs)

        return counted

    session = session_of(LocalSGD(every=every))
    model = nn.Sequential(net(), nn.BatchNorm1d(1)).double()
    model, optimizer = session.setup(model, sgd(model))
    for name in originals:
        setattr(dist, name, counting(name))
    try:
        for step in range(steps):
            calls.append(0)
            x, y = rows(8, seed=step + session.rank)
            session.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    return [count > 0 for count in calls]


def test_ranks_talk_at_exchanges_only(ranks):
    assert (
        ranks.run(count_collectives, 3, 7, world_size=2)
        == [[False, False, True, False, False, True, False]] * 2
    )


def skip_a_step():
    """Rank 1 leaves out the step that an exchange follows; a sum over ranks comes next."""
    session = session_of(LocalSGD(every=2, outer="average"))
    model = net()
    model, optimizer = session.setup(model, sgd(model))
    sums = []
    for step in range(6):
        x, y = rows(8, seed=step + session.rank)
        session.backward(nn.functional.mse_loss(model(x), y))
        if (session.rank, step) != (1, 3):
            optimizer.step()
        optimizer.zero_grad()
        sums.append(session.reduce(session.rank + step))
    return sums, values(model).tolist()


def test_a_step_that_one_rank_leaves_out_mixes_up_no_collectives(ranks):
    first, second = ranks.run(skip_a_step, world_size=2)
    assert first[0] == second[0] == [1 + 2 * step for step in range(6)]
    assert first[1] == second[1]


def train_two(every):
    """Train two models by two optimizers in turn, as in a GAN; return own and outer parameters."""
    session = session_of(LocalSGD(every=every, outer="average"))
    first, second = net(), net()
    pairs = [session.setup(model, sgd(model)) for model in (first, second)]
    for step in range(8):
        for model, optimizer in pairs:
            x, y = rows(8, seed=step + session.rank)
            session.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    return [outer_values(model).tolist() for model in (first, second)]


def test_two_optimizers_are_exchanged_together(ranks):
    first, second = ranks.run(train_two, 4, world_size=2)
    assert first == second
    start = values(net()).tolist()
    assert all(found != start for found in first)


# What others see


class Recurrent(nn.Module):
    """Keeps its weights in a list beside its parameters, and a buffer; its head is tied."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x):
        hidden, _ = self.inner(x.unsqueeze(1))
        return self.last(self.first(self.norm(hidden[:, 0])))


def look_at_model():
    """Evaluate between exchanges, in the middle of a step, as a script does."""
    session = session_of(LocalSGD(every=100))
    torch.manual_seed(5)
    model = Recurrent()
    model, optimizer = session.setup(model, torch.optim.Adam(model.parameters(), lr=0.05))
    fixed = rows(5)[0]
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    with torch.no_grad():
        before = model(fixed)
    model.train()
    for step in range(3):
        x, _ = rows(8, seed=step + 7 * session.rank)
        loss = model(x).square().mean()
        model.eval()
        with torch.no_grad():
            after = model(fixed)
        model.train()
        session.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    unchanged = all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    model.eval()
    own = model(fixed).detach()  # with autograd: this rank's
    return torch.equal(before, after), unchanged, values(model).tolist(), own.tolist()


def train_plainly(rank):
    torch.manual_seed(5)
    model = Recurrent().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(3):
        x, _ = rows(8, seed=step + 7 * rank)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return values(model)


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_evaluation_sees_the_outer_parameters_and_training_the_own(ranks, world_size):
    results = ranks.run(look_at_model, world_size=world_size)
    for rank, (is_same, is_unchanged, own, _) in enumerate(results):
        assert is_same
        assert is_unchanged
        assert torch.allclose(
            torch.tensor(own, dtype=torch.float64), train_plainly(rank), atol=1e-12
        )
    assert len({str(output) for *_, output in results}) == world_size


def load_afterwards():
    session = session_of(LocalSGD(every=1))
    model = net()
    model, optimizer = session.setup(model, sgd(model))
    for step in range(2):
        if step == 1:
            model.load_state_dict(
                {name: torch.ones_like(v) for name, v in net().state_dict().items()}
            )
            loaded = outer_values(model).tolist()
        x, y = rows(8, seed=step + session.rank)
        session.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    return set(loaded), outer_values(model).tolist()


def test_weights_that_a_script_loads_are_the_outer_ones(ranks):
    (loaded, first), (_, second) = ranks.run(load_afterwards, world_size=2)
    assert loaded == {1.0}
    assert first == second


def sums_of_replicas():
    """Return checksums as ``--check-replicas`` compares them, and of the ranks' own parameters."""
    session = session_of(LocalSGD(every=4))
    model = net()
    model, optimizer = session.setup(model, sgd(model))
    x, y = rows(8, seed=session.rank)
    session.backward(nn.functional.mse_loss(model(x), y))
    optimizer.step()
    parameters = list(model.parameters())
    return checksums([in_common(each) for each in parameters]), checksums(parameters)


def test_replicas_are_compared_by_what_they_have_in_common(ranks):
    (common, own), (their_common, their_own) = ranks.run(sums_of_replicas, world_size=2)
    assert common == their_common
    assert own != their_own


def two_sessions():
    """A model that an earlier session trained apart is an ordinary one in the next."""
    model = net()
    first = session_of(LocalSGD(every=9))
    first.setup(model, sgd(model))
    second = session_of("ddp")
    ready, optimizer = second.setup(model, sgd(model))
    x, y = rows(8)
    second.backward(nn.functional.mse_loss(ready(x), y))
    optimizer.step()
    with torch.no_grad():
        seen = model(x)
    return torch.equal(seen, model(x).detach()), not hasattr(model[0].weight, "paceline_outer")


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_later_session_has_the_model_for_itself(ranks, world_size):
    assert ranks.run(two_sessions, world_size=world_size) == [(True, True)] * world_size


# Checkpoints


def resumable(folder, strategy, *, stop_after=None, restore=False):
    """Train 12 steps or to a checkpoint; return the step, own and outer parameters, rate and random state."""
    session = session_of(strategy, folder)
    model = nn.Sequential(net(), nn.BatchNorm1d(1), nn.Dropout(0.2), nn.Linear(1, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = session.setup(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
    session.register(scheduler=scheduler)
    loader = session.loader(TensorDataset(*rows(48)), 8, shuffle=True)
    if restore:
        assert session.restore()
    begun_at = session.step, outer_values(session.unwrap(model)).tolist()
    for _ in session.epochs(2):
        for x, y in loader:
            if session.backward(nn.functional.mse_loss(model(x), y)):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            if session.step == stop_after:
                session.save(wait=True)
                own = session.unwrap(model)
                return begun_at, outer_values(own).tolist(), values(own).tolist()
    own = session.unwrap(model)
    buffers = {name: buffer.tolist() for name, buffer in own.named_buffers()}
    return begun_at, outer_values(own).tolist(), values(own).tolist(), buffers


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("stop_after", [4, 8])  # at an exchange, and on the way to one
def test_as_many_ranks_resume_exactly(ranks, tmp_path, world_size, stop_after):
    strategy = LocalSGD(every=4 if stop_after == 4 else 3)
    whole = ranks.run(resumable, str(tmp_path / "whole"), strategy, world_size=world_size)
    ranks.run(stop_at, str(tmp_path / "two"), strategy, stop_after, world_size=world_size)
    resumed = ranks.run(resume, str(tmp_path / "two"), strategy, world_size=world_size)
    for one, other in zip(whole, resumed, strict=True):
        assert other[0][0] == stop_after
        assert other[1:] == one[1:]


def stop_at(folder, strategy, step):
    return resumable(folder, strategy, stop_after=step)


def resume(folder, strategy):
    try:
        return resumable(folder, strategy, restore=True)
    except PacelineError as error:
        return error.finding.name


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 1), (1, 2)])
def test_other_numbers_of_ranks_continue_from_the_outer_parameters(ranks, tmp_path, before, after):
    strategy = LocalSGD(every=3)
    saved = ranks.run(stop_at, str(tmp_path), strategy, 8, world_size=before)
    resumed = ranks.run(resume, str(tmp_path), strategy, world_size=after)
    assert [result[0] for result in resumed] == [(8, saved[0][1])] * after
    assert all(result[1] == resumed[0][1] for result in resumed)
    assert all(map(math.isfinite, resumed[0][1]))


@pytest.mark.parametrize("world_size", [1, 2])
def test_ddp_continues_from_the_outer_parameters_and_back(ranks, tmp_path, world_size):
    saved = ranks.run(stop_at, str(tmp_path), LocalSGD(every=3), 8, world_size=2)
    resumed = ranks.run(resume, str(tmp_path), DDP(), world_size=world_size)
    assert [result[0] for result in resumed] == [(8, saved[0][1])] * world_size
    assert resumed[0][1:3] == resumed[-1][1:3]
    synchronous = ranks.run(stop_at, str(tmp_path / "ddp"), "ddp", 8, world_size=2)
    apart = ranks.run(resume, str(tmp_path / "ddp"), LocalSGD(every=3), world_size=2)
    assert [result[0] for result in apart] == [(8, synchronous[0][1])] * 2


def test_fsdp_refuses_the_optimizers_of_ranks(ranks, tmp_path):
    ranks.run(stop_at, str(tmp_path), LocalSGD(every=3), 8, world_size=2)
    assert ranks.run(resume, str(tmp_path), "fsdp", world_size=2) == ["option-contradicted"] * 2


def test_a_scale_of_the_loss_is_refused(ranks):
    assert ranks.run(scaled, world_size=1) == ["option-contradicted"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_optimizer_with_a_closure_is_refused(ranks, world_size):
    assert ranks.run(with_closure, world_size=world_size) == ["option-contradicted"] * world_size


def with_closure():
    session, model = session_of(LocalSGD(every=3)), net()
    try:
        session.setup(model, torch.optim.LBFGS(model.parameters()))
    except PacelineError as error:
        return error.finding.name
    return "none"


def freeze():
    """Freeze a layer after two exchanges, whose momentum would go on moving it."""
    session = session_of(LocalSGD(every=2))
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    found = []
    for step in range(10):
        if step == 5:
            model[0].requires_grad_(False)
        x, y = rows(8, seed=10 * step + session.rank)
        session.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        found.append(model[0].weight.flatten().tolist())
    return found


def test_momentum_does_not_move_what_is_frozen(ranks):
    first, second = ranks.run(freeze, world_size=2)
    assert first[3] != first[4]
    assert first[5] == first[9] == second[9]


def compiled(how):
    """Return own and outer parameters of a training that is compiled, or not."""
    session = session_of(LocalSGD(every=2))
    model = net()
    if how == "before":
        model = torch.compile(model, backend="eager")
    model, optimizer = session.setup(model, sgd(model))
    called = torch.compile(model, backend="eager") if how == "after" else model
    seen = []
    for step in range(7):
        x, y = rows(8, seed=10 * step + session.rank)
        session.backward(nn.functional.mse_loss(called(x), y))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            seen.append(called(x).tolist())
    return values(model).tolist(), outer_values(model).tolist(), seen


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_compiled_model_trains_apart_too(ranks, how):
    expected = ranks.run(compiled, "never", world_size=2)
    for found, plain in zip(ranks.run(compiled, how, world_size=2), expected, strict=True):
        for ours, theirs in zip(found, plain, strict=True):
            difference = torch.tensor(ours).sub(torch.tensor(theirs))
            assert difference.abs().max() < 1e-10


def scaled():
    try:
        Session(precision="16-mixed", strategy=LocalSGD(every=3))
    except PacelineError as error:
        return error.finding.name
    return "none"


# Trainer


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, _):
        seen.append(
            outer_values(self).tolist()
            == [v for p in self.net.parameters() for v in p.flatten().tolist()]
        )
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


seen: list[bool] = []


def fit(folder):
    seen.clear()
    task = Task()
    trainer = Trainer(
        max_epochs=2,
        strategy=LocalSGD(every=4),
        precision="64-true",
        enable_progress_bar=False,
        logger=False,
        run_dir=folder,
        seed=1,
    )
    data = torch.utils.data.DataLoader(TensorDataset(*rows(40)), batch_size=8)
    trainer.fit(task, data, data)
    return all(seen) and bool(seen), outer_values(task).tolist(), values(task).tolist()


def test_a_trainer_validates_the_outer_parameters(ranks, tmp_path):
    first, second = ranks.run(fit, str(tmp_path), world_size=2)
    assert first[0] and second[0]
    assert first[1] == second[1]
    assert first[2] != second[2]  # ten steps: two after the last exchange
