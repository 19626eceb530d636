"""Session on real gloo ranks: precision, weights, streams, samplers, gather, once, hooks, and stopping."""

import copy
import itertools
import os
import pickle
import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from paceline import DDP, Session
from paceline.errors import PacelineError
from paceline.train.session.once import do_once
from paceline.world import World

WORLDS = (1, 2, 3, 4)


def numbers(length, *, dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(length, 6, generator=generator, dtype=dtype)
    return TensorDataset(x, x.square().mean(1, keepdim=True), torch.arange(length))


def net(*, dropout=0.0):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def everything(model):
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


# Precision


def train_in(folder, precision, scale):
    session = Session(precision=precision, seed=1, run_dir=folder)
    model = net()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loss_scale = session._gradients.scale
    if scale is not None:  # so that some steps overflow
        loss_scale.load_state_dict(
            {**loss_scale.state_dict(), "scale": scale, "growth_interval": 3}
        )
    history = []
    loader = session.loader(numbers(23), 4, shuffle=True)
    for _ in session.epochs(2):
        for x, y, _ in loader:
            output = model(x)
            assert output.dtype == (torch.float64 if precision == "64-true" else torch.float32)
            session.backward(nn.functional.mse_loss(output, y.to(output)))
            skipped = all(each.grad is None for each in model.parameters())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            history.append(
                (session.step, schedule.get_last_lr(), loss_scale and loss_scale.value, skipped)
            )
    taken = next(iter(optimizer.state.values()))["step"].item()
    dtype = str(next(session.unwrap(model).parameters()).dtype)
    return history, taken, dtype, everything(session.unwrap(model))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", "torch.float32"),
        ("64-true", "torch.float64"),
        ("16-mixed", "torch.float32"),
        ("bf16-mixed", "torch.float32"),
        ("bf16-true", "torch.bfloat16"),
    ],
)
def test_scale_rate_and_steps_are_the_same_at_any_scale(ranks, tmp_path, precision, dtype):
    scale = 2.0**19 if precision == "16-mixed" else None
    expected, taken, found_dtype, _ = ranks.run(
        train_in, str(tmp_path), precision, scale, world_size=1
    )[0]
    assert found_dtype == dtype
    assert len(expected) == 12
    num_skipped = sum(each[3] for each in expected)
    if scale is not None:
        assert 0 < num_skipped < 12, "the test has to see both"
        assert len({each[2] for each in expected}) > 2
    assert taken == 12 - num_skipped
    for world_size in (2, 4):
        results = ranks.run(train_in, str(tmp_path), precision, scale, world_size=world_size)
        for history, theirs, _, weights in results:
            assert (history, theirs) == (expected, taken)
            assert weights == results[0][3]


def overflow_on_one_rank(folder, strategy):
    session = Session(precision="16-mixed", strategy=strategy, run_dir=folder)
    model = net()
    model = session.setup(model)
    before = session._gradients.scale.value
    loss = model(torch.ones(3, 6, device=session.device)).sum()
    session.backward(loss * (float("inf") if session.rank == 1 else 1.0))
    return (
        before,
        session._gradients.scale.value,
        all(each.grad is None for each in model.parameters()),
    )


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_skip_what_overflows_on_one(ranks, tmp_path, strategy):
    (before, after, _), *_ = results = ranks.run(
        overflow_on_one_rank, str(tmp_path), strategy, world_size=3
    )
    assert results == [(before, before / 2, True)] * 3
    assert after == before / 2


# Weights of the user's own


def train_tokens(accumulate, strategy="ddp"):
    """Each row counts with its own number of tokens, which no loader knows."""
    session = Session(precision="64-true", accumulate=accumulate, strategy=strategy)
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    losses = []
    for x, y, index in session.loader(numbers(29), 5):
        tokens = (index % 4 + 1).double()
        loss = ((model(x) - y).square().flatten() * tokens).sum() / tokens.sum().clamp(min=1)
        if session.backward(loss, weight=tokens.sum()):
            grads = [each.grad for each in session.unwrap(model).parameters()]
            losses.append(
                [
                    (each.full_tensor() if isinstance(each, DTensor) else each).tolist()
                    for each in grads
                ]
            )
            optimizer.step()
            optimizer.zero_grad()
    return losses


def tokens_by_hand(accumulate):
    model = net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y, index = numbers(29, dtype=torch.float32).tensors
    x, y = x.double(), y.double()
    found = []
    for start in range(0, 29, 5 * accumulate):
        rows = slice(start, start + 5 * accumulate)
        tokens = (index[rows] % 4 + 1).double()
        loss = ((model(x[rows]) - y[rows]).square().flatten() * tokens).sum() / tokens.sum()
        loss.backward()
        found.append([each.grad.tolist() for each in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(
    ("strategy", "world_size"), [("ddp", 1), ("ddp", 3), ("fsdp", 3), (DDP(static_graph=True), 3)]
)
def test_a_weight_overrides_the_rows(ranks, accumulate, strategy, world_size):
    (expected,) = ranks.run(tokens_by_hand, accumulate, world_size=1)
    for found in ranks.run(train_tokens, accumulate, strategy, world_size=world_size):
        assert len(found) == len(expected)
        for step, theirs in zip(found, expected, strict=True):
            for ours, by_hand in zip(step, theirs, strict=True):
                assert torch.tensor(ours).sub(torch.tensor(by_hand)).abs().max() < 1e-12


class Tempered(nn.Module):
    """What it returns of no rows is NaN, and is multiplied by something that is learnt."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layer, self.heat = nn.Linear(6, 1), nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x):
        return self.layer(x).mean() * torch.exp(-self.heat)


def train_tempered(strategy, accumulate):
    session = Session(precision="64-true", strategy=strategy, accumulate=accumulate)
    model = Tempered()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for x in session.loader(torch.ones(3, 6), 2):  # the second batch has one row
        if session.backward(model(x).sum()):
            optimizer.step()
            optimizer.zero_grad()
    held = session.unwrap(model).parameters()
    return [(each.full_tensor() if isinstance(each, DTensor) else each).tolist() for each in held]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "strategy", ["ddp", "fsdp", DDP(static_graph=True, gradient_as_bucket_view=True)]
)
def test_the_mean_over_no_rows_stays_out_of_what_multiplies_it(ranks, strategy, accumulate):
    (expected,) = ranks.run(train_tempered, "ddp", accumulate, world_size=1)
    for found in ranks.run(train_tempered, strategy, accumulate, world_size=2):
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.tensor(ours).sub(torch.tensor(theirs)).abs().max() < 1e-12


# Groups of accumulated batches


def train_in_groups(with_hook, disturbed, static_graph=False):
    """Return what all-reduces there were up to each batch, and the weights."""
    strategy = DDP(static_graph=static_graph)
    session = Session(precision="64-true", accumulate=3, strategy=strategy, check_ranks=False)
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    if with_hook:
        model.register_comm_hook(None, fp16_compress_hook)
    reduced, original = [], dist.all_reduce

    def counted(*args, **kwargs):
        if reduced:  # before the first batch ranks compare their data
            reduced[-1] += 1
        return original(*args, **kwargs)

    dist.all_reduce = counted
    try:
        test = session.loader(numbers(7), 2)
        loader = session.loader(numbers(23), 5)  # five batches: a group of three and one of two
        for _ in range(2):
            for x, y, _ in loader:
                reduced.append(0)
                loss = nn.functional.mse_loss(model(x), y.double())
                if disturbed:  # an evaluation in the middle, as some write it
                    for other, *_ in test:
                        model(other)
                if session.backward(loss):
                    optimizer.step()
                    optimizer.zero_grad()
    finally:
        dist.all_reduce = original
    return reduced, everything(session.unwrap(model))


def test_ranks_talk_at_the_end_of_a_group_only(ranks):
    results = ranks.run(train_in_groups, True, False, world_size=2)
    assert [each[0] for each in results] == [[0, 0, 1, 0, 1] * 2] * 2


def test_a_static_graph_is_learnt_in_the_first_group(ranks):
    expected = ranks.run(train_in_groups, True, False, world_size=2)
    found = ranks.run(train_in_groups, True, False, True, world_size=2)
    assert [each[0] for each in found] == [[1, 1, 1, 0, 1, 0, 0, 1, 0, 1]] * 2
    assert found[0][1] == found[1][1]
    for name, values in expected[0][1].items():
        assert (
            torch.tensor(found[0][1][name]).sub(torch.tensor(values)).abs().max() < 1e-3
        )  # float16 on the way


def leave_a_group(how):
    session = Session(precision="64-true", accumulate=4)
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    loader = session.loader(numbers(24), 4)
    if how == "left":
        for x, y, _ in loader:
            assert not session.backward(nn.functional.mse_loss(model(x), y.double()))
            break
    for x, y, _ in loader:
        if session.backward(nn.functional.mse_loss(model(x), y.double())):
            optimizer.step()
            optimizer.zero_grad()
    return everything(session.unwrap(model))


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_is_left_of_a_group_is_dropped(ranks, world_size):
    expected = ranks.run(leave_a_group, "whole", world_size=world_size)
    assert ranks.run(leave_a_group, "left", world_size=world_size) == expected


def test_an_evaluation_inside_a_group_changes_nothing(ranks):
    (_, expected), *_ = ranks.run(train_in_groups, False, False, world_size=2)
    for _, weights in ranks.run(train_in_groups, False, True, world_size=2):
        for name, values in expected.items():
            assert torch.tensor(weights[name]).sub(torch.tensor(values)).abs().max() < 1e-12


def evaluate_before_backward():
    """The forwards of an evaluation with autograd, in the middle of a group, make DDP reduce in the next backward."""
    session = Session(precision="64-true", accumulate=2)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model = session.setup(model)
    data = torch.arange(1.0, 9.0).view(-1, 1)
    train, test = session.loader(data, 4), session.loader(data, 4)
    for x in train:
        weight = x.sum()
        loss = (model(x) * x).sum() / weight
        for other in test:
            model(other)
        complete = session.backward(loss, weight=weight)
    assert complete
    return session.unwrap(model).weight.grad.item()


@pytest.mark.parametrize("world_size", [1, 2])
def test_weights_and_an_evaluation_inside_a_group(ranks, world_size):
    found = ranks.run(evaluate_before_backward, world_size=world_size)
    assert found == pytest.approx([204 / 36] * world_size, abs=1e-12)


def second_loss_of_a_group():
    session = Session(accumulate=2)
    model = session.setup(net())
    x, y, _ = next(iter(session.loader(numbers(16), 4)))
    session.backward((model(x) - y).square().mean(), weight=len(y))
    return name_of(lambda: session.backward(model(x).mean(), weight=1))


def test_two_weighted_losses_of_one_batch_in_a_group_are_refused(ranks):
    assert ranks.run(second_loss_of_a_group, world_size=2) == ["batch-weight-unknown"] * 2


# What would not be averaged


def second_loss():
    session = Session()
    model = net()
    model, _ = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    output = model(torch.ones(2, 6, device=session.device))
    session.backward(output.sum(), weight=2)
    return name_of(lambda: session.backward(output.mean(), weight=2))


def unwrapped():
    session = Session()
    model = session.setup(net())
    return name_of(
        lambda: session.backward(
            session.unwrap(model)(torch.ones(2, 6, device=session.device)).sum()
        )
    )


def through_another():
    """A's gradient would stay local, although B, which has run, gets its own averaged."""
    session = Session()
    first, second = session.setup(nn.Linear(6, 6)), session.setup(nn.Linear(6, 1))
    x = torch.ones(2, 6, device=session.device)
    session.backward(second(first(x)).sum())
    return name_of(lambda: session.backward(second(session.unwrap(first)(x)).sum()))


def thawed():
    session = Session()
    model = net()
    model[0].requires_grad_(False)
    model, _ = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = session.loader(numbers(8), 4)
    for x, *_ in loader:
        session.backward(model(x).sum())
    session.unwrap(model)[0].requires_grad_(True)
    return name_of(lambda: next(iter(loader)))


def thawed_as_a_whole():
    session = Session()
    body, head = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 1)
    body, head = session.setup(body), session.setup(head)
    loader = session.loader(numbers(8), 4)
    for x, *_ in loader:
        session.backward(head(body(x)).sum())
    body.requires_grad_(True)
    return name_of(lambda: next(iter(loader)))


def frozen_statistics(strategy):
    session = Session(strategy=strategy)
    body, head = nn.BatchNorm1d(6).requires_grad_(False), nn.Linear(6, 1)
    body, head = session.setup(body), session.setup(head)
    for x, *_ in session.loader(numbers(8), 4):
        session.backward(head(body(x)).sum())
    return everything(body)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_statistics_of_a_frozen_model_are_equal(ranks, strategy):
    first, second = ranks.run(frozen_statistics, strategy, world_size=2)
    assert first == second
    assert first["running_mean"] != [0.0] * 6


def test_two_models_with_a_loss_each(ranks):
    assert ranks.run(two_losses, world_size=2) == [None] * 2


def two_losses():
    """As a GAN is trained: what one model made is judged by the other, with a backward for each."""
    session = Session()
    first, second = session.setup(nn.Linear(6, 6)), session.setup(nn.Linear(6, 1))
    for x, *_ in session.loader(numbers(8), 4):
        made = first(x)
        session.backward(second(made.detach()).sum())
        found = name_of(lambda made=made: session.backward(session.unwrap(second)(made).sum()))
    return (
        None
        if found == "gradients-not-averaged"
        else "missed: the second loss reaches a model whose turn is over"
    )


def copy_model():
    session = Session()
    model = session.setup(net())
    copied = copy.deepcopy(model)
    x = torch.ones(1, 6, device=session.device)
    return copied is not model and torch.equal(copied(x), model(x))


def test_a_model_can_be_copied(ranks):
    assert ranks.run(copy_model, world_size=2) == [True] * 2


def split(seed):
    torch.manual_seed(os.getpid())
    session = Session(seed=seed)
    part, _ = torch.utils.data.random_split(numbers(12), [8, 4])
    try:
        next(iter(session.loader(part, 4)))
    except PacelineError as error:
        return error.finding.name, error.finding.fix.partition(", which")[0]


def test_a_split_that_differs_between_ranks_is_noticed_and_its_cure_helps(ranks):
    cure = "make the data after session = paceline.Session(seed=0)"
    assert ranks.run(split, None, world_size=2) == [("data-not-shardable", cure)] * 2
    assert ranks.run(split, 0, world_size=2) == [None] * 2


def restore_late(folder, late):
    """Return the learning rates of a training that went on; with a scheduler that is made before or after."""
    session = Session(run_dir=folder)
    model = net()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if late:
        session.restore()
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    session.register(schedule=schedule)
    if not late:
        session.restore()
    rates = []
    for _ in range(5):
        session.backward(model(torch.ones(2, 6, device=session.device)).sum())
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    session.save(wait=True)
    return rates


def test_a_scheduler_may_be_made_after_the_restore(ranks, tmp_path):
    for late in (False, True):
        folder = str(tmp_path / str(late))
        rates = [ranks.run(restore_late, folder, late, world_size=2)[0] for _ in range(2)]
        assert rates[0] + rates[1] == pytest.approx(
            [0.1 * (0.1 + 0.9 * step / 20) for step in range(1, 11)]
        )


def once_large():
    session = Session()
    return len(session.once(lambda: b"x" * (10 << 20)))


def test_a_large_value_of_once(ranks):
    assert ranks.run(once_large, world_size=2, launched=True) == [10 << 20] * 2


def name_of(function):
    try:
        function()
    except PacelineError as error:
        return error.finding.name
    return None


@pytest.mark.parametrize(
    "wrong", [second_loss, unwrapped, through_another, thawed, thawed_as_a_whole]
)
def test_gradients_that_would_stay_on_their_rank_are_refused(ranks, wrong):
    assert ranks.run(wrong, world_size=2) == ["gradients-not-averaged"] * 2


# Gather and evaluation


def gather_all(session, length, batch_size, sampled):
    data = TensorDataset(torch.arange(length), torch.arange(length * 2).view(length, 2))
    sampler = SubsetRandomSampler(range(0, length, 2)) if sampled else None
    loader = session.loader(data, batch_size, sampler=sampler)
    by_batch, kept = [], []
    for index, pair in loader:
        together = session.gather({"index": index, "pair": pair})
        assert together["pair"].tolist() == [
            [2 * each, 2 * each + 1] for each in together["index"].tolist()
        ]
        by_batch += together["index"].tolist()
        kept.append(index)
    whole = session.gather(torch.cat(kept)).tolist() if kept else []
    return by_batch, whole, session.reduce(sum(map(len, kept)))


def gather_grid():
    session = Session()
    return {
        (length, batch_size, sampled): gather_all(session, length, batch_size, sampled)
        for length in range(1, 18)
        for batch_size in range(1, 6)
        for sampled in (False, True)
    }


@pytest.mark.parametrize("world_size", WORLDS)
def test_gather_is_exact_and_in_order(ranks, world_size):
    results = ranks.run(gather_grid, world_size=world_size)
    for (length, _, sampled), (by_batch, whole, count) in results[0].items():
        expected = list(range(0, length, 2 if sampled else 1))
        assert whole == by_batch
        assert count == len(expected)
        assert (sorted(whole) if sampled else whole) == expected
    assert all(each == results[0] for each in results)


def gather_what_fits_nothing():
    session = Session()
    rows = session.gather(torch.full((session.rank + 1,), session.rank))
    return (
        rows.tolist(),
        name_of(lambda: session.gather(torch.tensor(1.0))),
        name_of(lambda: session.gather(1)),
    )


def test_gather_without_a_loader(ranks):
    expected = ([0, 1, 1, 2, 2, 2], "option-invalid", "option-invalid")
    assert ranks.run(gather_what_fits_nothing, world_size=3) == [expected] * 3


def gather_dicts():
    session = Session()
    names = ["first", "second"] if session.rank else ["second", "first"]
    given = {name: torch.full((2,), 10 * session.rank + len(name)) for name in names}
    found = session.gather(given)
    return list(found) == names, {name: rows.tolist() for name, rows in found.items()}


def test_gather_goes_by_the_names_of_a_dict(ranks):
    expected = {"first": [5, 5, 15, 15], "second": [6, 6, 16, 16]}
    assert ranks.run(gather_dicts, world_size=2) == [(True, expected)] * 2


def gather_kinds():
    session = Session()
    rows = torch.tensor([]) if session.rank == 1 else torch.full((1, 2), session.rank)
    found = session.gather(rows)
    none = session.gather(torch.empty(0, 3) if session.rank else torch.tensor([]).bool())
    strange = name_of(
        lambda: session.gather(torch.ones(2, dtype=torch.int64 if session.rank else torch.float32))
    )
    return found.tolist(), found.dtype, none.shape, none.dtype, strange


def test_no_rows_are_of_the_kind_of_the_others(ranks):
    expected = ([[0, 0], [2, 2]], torch.int64, torch.Size([0]), torch.bool, "option-invalid")
    assert ranks.run(gather_kinds, world_size=3) == [expected] * 3


# Samplers and adopted loaders


def draw(kind):
    session = Session(seed=4)
    data = TensorDataset(torch.arange(20))
    torch.manual_seed(session.rank)  # global generators that differ
    random.seed(session.rank)
    if kind == "weighted":
        loader = session.loader(data, 6, sampler=WeightedRandomSampler(torch.arange(20.0), 15))
    elif kind == "subset":
        loader = session.loader(data, 6, sampler=SubsetRandomSampler(range(5, 18)))
    elif kind == "generator":
        generator = torch.Generator().manual_seed(9)
        loader = session.loader(
            data, 6, sampler=SubsetRandomSampler(range(20), generator=generator)
        )
    elif kind == "batches":
        loader = session.loader(data, batch_sampler=[[3, 1, 2], [7], [9, 8, 6, 5]])
    elif kind == "shuffled DataLoader":
        loader = session.loader(DataLoader(data, batch_size=6, shuffle=True))
    else:
        loader = session.loader(DataLoader(data, batch_size=6, drop_last=True))
    before = torch.get_rng_state()
    with torch.no_grad():  # with autograd the first batch would seed each rank in its own way
        found = [[session.gather(index).tolist() for (index,) in loader] for _ in range(2)]
    return found, torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "kind", ["weighted", "subset", "generator", "batches", "shuffled DataLoader", "DataLoader"]
)
def test_samplers_are_shared_out(ranks, kind):
    ((expected, _),) = ranks.run(draw, kind, world_size=1)
    for world_size in (2, 4):
        for found, untouched in ranks.run(draw, kind, world_size=world_size):
            assert found == expected
            assert untouched
    first, second = expected
    assert (first == second) == (kind in ("batches", "DataLoader"))
    sizes = {
        "weighted": [6, 6, 3],
        "subset": [6, 6, 1],
        "batches": [3, 1, 4],
        "DataLoader": [6, 6, 6],
    }
    assert [len(batch) for batch in first] == sizes.get(kind, [6, 6, 6, 2])


# Streams


class Whole(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(torch.arange(self.length).view(-1, 1).float())


class Own(IterableDataset):
    """Another stream on each rank: a number of batches of three."""

    def __init__(self, batches, rank):
        self.batches, self.rank = batches, rank

    def __iter__(self):
        return iter(torch.full((3 * self.batches, 1), float(self.rank)))


def read_whole(length, batch_size, accumulate, last, workers, strategy="ddp"):
    session = Session(precision="64-true", accumulate=accumulate, seed=0, strategy=strategy)
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.constant_(model.bias, 0.0)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    seen, steps = [], 0
    loader = session.loader(Whole(length), batch_size, last=last, num_workers=workers)
    for x in loader:
        seen.append(session.gather(x).flatten().tolist())
        if session.backward(model(x).mean()):
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    (weight, *_) = session.unwrap(model).parameters()
    return seen, steps, (weight.full_tensor() if isinstance(weight, DTensor) else weight).item()


@pytest.mark.parametrize(
    ("accumulate", "last", "workers", "strategy"),
    [
        (1, "exact", 0, "ddp"),
        (3, "exact", 0, "ddp"),
        (2, "drop", 2, "ddp"),
        (3, "exact", 0, "fsdp"),
    ],
)
def test_a_whole_stream_gives_the_batches_of_one_rank(ranks, accumulate, last, workers, strategy):
    ((expected, steps, weight),) = ranks.run(read_whole, 23, 4, accumulate, last, 0, world_size=1)
    assert list(itertools.chain(*expected)) == list(range(23 if last == "exact" else 20))
    assert steps == -(-len(expected) // accumulate)
    for world_size in (2, 4):
        results = ranks.run(
            read_whole, 23, 4, accumulate, last, workers, strategy, world_size=world_size
        )
        for found, theirs, other in results:
            assert (found, theirs) == (expected, steps)
            assert other == pytest.approx(weight, abs=1e-12)


def read_own(lengths):
    session = Session()
    model = nn.Linear(1, 1)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    rows = []
    stream = Own(lengths[session.rank], session.rank)
    loader = session.loader(stream, per_rank_batch_size=3, sharded=True)
    for x in loader:
        session.backward(model(x).mean())
        optimizer.step()
        optimizer.zero_grad()
        rows.append(loader.rows)
    return rows, everything(session.unwrap(model))


def test_uneven_streams_end_together(ranks):
    lengths = (10, 10, 9, 3)
    results = ranks.run(read_own, lengths, world_size=4)
    for (rows, weights), length in zip(results, lengths, strict=True):
        assert rows == [3] * length + [0] * (10 - length)
        assert weights == results[0][1]


def test_an_empty_stream_is_named_on_all_ranks(ranks):
    assert ranks.run(read_empty, world_size=2) == ["data-not-shardable"] * 2


def read_empty():
    return name_of(lambda: read_own((2, 0)))


# Once


def do_work_once(fails):
    session = Session()
    started = time.monotonic()

    def work():
        time.sleep(0.3)
        if fails:
            raise OSError("no such host")
        return {"by": session.rank}

    try:
        first = session.once(work)
        # All return from the first together, so each waits for the whole of the second.
        return first, session.once(work, scope="node"), time.monotonic() - started > 0.25
    except PacelineError as error:
        return error.finding.name, error.finding.what, error.finding.where.rsplit(" ", 1)[1]
    except OSError:
        return "raised here"


def test_once(ranks):
    assert ranks.run(do_work_once, False, world_size=3) == [({"by": 0}, {"by": 0}, True)] * 3


def test_what_fails_once_fails_everywhere(ranks):
    main, *others = ranks.run(do_work_once, True, world_size=3)
    assert main == "raised here"
    assert (
        others
        == [("user-exception", "session.once failed on rank 0: OSError: no such host", "work")] * 2
    )


class Runs:
    """Runs code in whoever unpickles it."""

    def __reduce__(self):
        return exec, ("raise SystemExit('this text of a stranger was run')",)


def do_once_beside_a_stranger():
    """Somebody who reaches the store has left a pickle wherever a value might be looked for."""
    session = Session()
    store, evil = dist.distributed_c10d._get_default_store(), pickle.dumps(("value", Runs()))
    for key in ("job", "0", "1"):
        for name, value in (("rank", "0"), ("part/0", evil), ("value", evil)):
            store.set(f"paceline/once/1/{key}/{name}", value)
    store.set("paceline/once/1/job/end", "1")
    return session.once(lambda: {"by": session.rank})


def test_a_pickle_that_a_stranger_left_in_the_store_is_not_run(ranks):
    assert ranks.run(do_once_beside_a_stranger, world_size=2) == [{"by": 0}] * 2


def do_once_in_two_sessions():
    first = Session()
    early = first.once(lambda: "early")
    second = Session()
    return early, second.once(lambda: "late"), first.once(lambda: "last")


def test_each_call_of_once_has_a_value_of_its_own(ranks):
    assert ranks.run(do_once_in_two_sessions, world_size=2) == [("early", "late", "last")] * 2


def do_once_round_the_nodes():
    """Ranks 0 and 2 are on one node, 1 and 3 on the other, as with srun --distribution=cyclic."""
    rank = dist.get_rank()
    world = World(
        rank, 4, local_rank=rank // 2, local_world_size=2, node_rank=rank % 2, num_nodes=2
    )
    return do_once(lambda: rank, "node", world=world)


def test_once_on_each_node_where_ranks_go_round_the_nodes(ranks):
    assert ranks.run(do_once_round_the_nodes, world_size=4) == [0, 1, 0, 1]


# The user's objects


class Tagged(nn.Linear):
    label = "mine"

    def __init__(self):
        super().__init__(6, 1)
        self.calls = []
        self.register_forward_hook(lambda *_: self.calls.append("forward"))

    def shout(self):
        return self.label.upper()


def keep_objects(precision):
    session = Session(precision=precision)
    mine = Tagged()
    keys, hooks = list(mine.state_dict()), len(mine._forward_hooks)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    model, same = session.setup(mine, optimizer)
    session.backward(model(torch.ones(2, 6, device=session.device)).sum())
    return (
        isinstance(model, DistributedDataParallel) and isinstance(model, Tagged),
        same is optimizer and type(optimizer.step.__func__) is type(Tagged.shout),
        session.unwrap(model) is mine and type(mine) is Tagged,
        mine.shout() == "MINE" and mine.calls == ["forward"],
        list(mine.state_dict()) == keys,
        len(mine._forward_hooks) >= hooks,
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_objects_come_back_as_they_are(ranks, precision):
    assert ranks.run(keep_objects, precision, world_size=2) == [(True,) * 6] * 2


# Communication hooks


def train_compressed(with_hook):
    session = Session(strategy=DDP(static_graph=True))
    model = nn.Sequential(net(), nn.Linear(1, 5), nn.Linear(5, 40), nn.Linear(40, 1))
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.02))
    if with_hook and session.world_size > 1:  # as in docs/guides/slow-links.md
        model.register_comm_hook(None, fp16_compress_hook)
    data, losses = numbers(48), []
    for _ in range(6):
        for x, y, _ in session.loader(data, 12):
            loss = nn.functional.mse_loss(model(x), y)
            session.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(session.reduce(loss.item()) / session.world_size)
    return losses, everything(session.unwrap(model))


def test_a_hook_of_torch_works_on_gloo_and_keeps_ranks_together(ranks):
    plain, _ = ranks.run(train_compressed, False, world_size=3)[0]
    results = ranks.run(train_compressed, True, world_size=3)
    for losses, weights in results:
        assert weights == results[0][1]
        assert losses[-1] < 0.7 * losses[0]
        assert losses != plain, "the hook is at work"
        assert losses == pytest.approx(plain, abs=1e-3)


@pytest.mark.cpu
def test_batch_norm_is_not_synchronised_on_cpus(ranks):
    assert ranks.run(ask_for_synced_batch_norm, world_size=2) == ["option-contradicted"] * 2


def ask_for_synced_batch_norm():
    return name_of(lambda: Session(strategy=DDP(sync_batchnorm=True)))


# Stopping


def train_until_stopped(folder, by, at):
    session = Session(seed=2, run_dir=folder)
    model = net()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters()))
    loader = session.loader(numbers(40), 4, shuffle=True)
    session.restore()
    seen = []
    try:
        for epoch in session.epochs(2):
            for x, y, index in loader:
                seen.append((epoch, session.gather(index).tolist()))
                session.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
                if session.step == at and session.rank == session.world_size - 1:
                    if by == "stop":
                        session.stop()
                    else:
                        signal.pthread_kill(threading.main_thread().ident, by)
    except SystemExit as end:
        return end.code, session.step, seen
    return None, session.step, seen


@pytest.mark.parametrize(
    "by", ["stop", signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT]
)
@pytest.mark.parametrize("world_size", [1, 3])
def test_all_ranks_stop_at_one_step_and_continue(ranks, tmp_path, by, world_size):
    results = ranks.run(train_until_stopped, str(tmp_path), by, 4, world_size=world_size)
    codes, steps, _ = zip(*results, strict=True)
    assert set(codes) == {75}
    assert len(set(steps)) == 1
    assert 4 <= steps[0] < 20
    first = results[0][2]
    ((code, step, second),) = ranks.run(train_until_stopped, str(tmp_path), by, -1, world_size=1)
    assert (code, step) == (None, 20)
    whole = first + second
    for epoch in range(2):
        assert sorted(itertools.chain(*(ids for at, ids in whole if at == epoch))) == list(
            range(40)
        )
    assert os.listdir(tmp_path / "checkpoints")
