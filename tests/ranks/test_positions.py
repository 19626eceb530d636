"""Where a training goes on: at every place where it can be stopped or saved, no sample is lost and none comes twice."""

import contextlib
import io
import itertools
import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from paceline import Session
from paceline.errors import PacelineError


def begin(folder, *, lr=0.1):
    """A session and a model of one parameter."""
    session = Session(seed=0, run_dir=folder)
    torch.manual_seed(3)
    model = torch.nn.Linear(1, 1)
    return session, *session.setup(model, torch.optim.SGD(model.parameters(), lr=lr))


def learn(session, model, optimizer, x, **weight):
    if session.backward(model(x.float().view(-1, 1)).square().mean(), **weight):
        optimizer.step()
        optimizer.zero_grad()


def ended(function):
    """Return whether a start was stopped rather than ended."""
    try:
        function()
    except SystemExit as end:
        assert end.code == 75
        return True
    return False


# Epochs


def without_loader(folder):
    session, model, optimizer = begin(folder)
    test = session.loader(torch.arange(4.0), 4)
    session.restore("latest")
    epochs = []
    for epoch in session.epochs(4):
        epochs.append(epoch)
        learn(session, model, optimizer, torch.ones(8))
        with torch.no_grad():
            assert [len(x) for x in test] == [4]
        session.save(wait=True)
        if len(epochs) == 2:
            break
    return epochs


def test_steps_of_ones_own_data_make_an_epoch_too(ranks, tmp_path):
    starts = [ranks.run(without_loader, str(tmp_path), world_size=1)[0] for _ in range(4)]
    assert starts == [[0, 1], [2, 3], [], []]


def stop_at(folder, place):
    """Train three batches an epoch for two epochs; ask for a stop at a place (epoch, batch)."""
    session, model, optimizer = begin(folder)
    train = session.loader(torch.arange(6), 2, shuffle=True)
    session.restore("latest")
    seen = []

    def fit():
        for epoch in session.epochs(2):
            if place == (epoch, 0):
                session.stop()
            for number, x in enumerate(train, start=1):
                learn(session, model, optimizer, x)
                seen.append((epoch, *x.tolist()))
                if place == (epoch, number):
                    session.stop()
            session.save(wait=True)

    return ended(fit), seen


@pytest.mark.parametrize(
    "places", [[(0, 0)], [(1, 0)], [(0, 1), (0, 0)], [(0, 2), (1, 0)], [(0, 3)], [(1, 3)], [(1, 1)]]
)
def test_a_stop_anywhere_in_an_epoch(ranks, tmp_path, places):
    ((_, expected),) = ranks.run(stop_at, str(tmp_path / "whole"), None, world_size=1)
    seen = []
    for place in places:
        ((is_stopped, found),) = ranks.run(stop_at, str(tmp_path / "stopped"), place, world_size=1)
        seen += found
        assert is_stopped or place == (
            1,
            3,
        )  # the last batch of all: nothing is left to stop before
    for _ in range(2):  # the second finds nothing left to do
        ((_, found),) = ranks.run(stop_at, str(tmp_path / "stopped"), None, world_size=1)
        seen += found
    assert seen == expected


def evaluate_with_grad(folder, stops):
    session, model, optimizer = begin(folder)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    session.register(scheduler=scheduler)
    train, test = session.loader(torch.arange(4), 2), session.loader(torch.arange(4), 2)
    session.restore("latest")
    rates = []

    def fit():
        for epoch in session.epochs(3):
            for x in train:
                learn(session, model, optimizer, x)
            rates.append(optimizer.param_groups[0]["lr"])
            if stops and epoch == 0:
                session.stop()
            for x in test:  # nobody said torch.no_grad()
                model(x.float().view(-1, 1))
            scheduler.step()

    ended(fit)
    return rates


def test_nobody_stops_in_an_evaluation(ranks, tmp_path):
    (first,) = ranks.run(evaluate_with_grad, str(tmp_path), True, world_size=1)
    (then,) = ranks.run(evaluate_with_grad, str(tmp_path), False, world_size=1)
    assert first + then == [0.1, 0.05, 0.025]


def leave_epochs():
    session = Session()
    for _ in session.epochs(3):
        break
    return len(session.loader(torch.arange(4), 2, shuffle=True))


def test_after_a_break_no_epoch_is_under_way(ranks):
    assert ranks.run(leave_epochs, world_size=1) == [2]


# Loaders


def zipped(folder, stop_after):
    session, model, optimizer = begin(folder)
    one, other = (
        session.loader(torch.arange(8), 2, shuffle=True),
        session.loader(torch.arange(8), 2, shuffle=True),
    )
    session.restore("latest")
    seen = []

    def fit():
        for _ in session.epochs(2):
            for x, z in zip(one, other, strict=True):
                learn(session, model, optimizer, torch.cat([x, z]), weight=len(x) + len(z))
                seen.append(x.tolist() + z.tolist())
                if len(seen) == stop_after:
                    session.stop()

    ended(fit)
    return seen


def test_loaders_side_by_side_continue_together(ranks, tmp_path):
    (expected,) = ranks.run(zipped, str(tmp_path / "whole"), 0, world_size=1)
    (first,) = ranks.run(zipped, str(tmp_path / "stopped"), 3, world_size=1)
    (then,) = ranks.run(zipped, str(tmp_path / "stopped"), 0, world_size=1)
    assert first + then == expected


def save_first(folder, save_at, looks):
    """Save at the head of a batch's body; look at the data before going on."""
    session, model, optimizer = begin(folder)
    train = session.loader(torch.arange(6), 2)
    restored = session.restore("latest")
    if restored and looks == "batch":
        next(iter(train))
    if restored and looks == "evaluation":
        with torch.no_grad():
            assert [x.tolist() for x in train] == [[0, 1], [2, 3], [4, 5]]
    seen = []
    for epoch in session.epochs(2):
        for number, x in enumerate(train):
            if (epoch, number) == save_at:
                session.save(wait=True)
                return seen
            learn(session, model, optimizer, x)
            seen.append((epoch, *x.tolist()))
    return seen


@pytest.mark.parametrize("looks", ["", "batch", "evaluation"])
@pytest.mark.parametrize("save_at", [(0, 0), (0, 1), (1, 0), (1, 2)])
def test_a_save_before_the_backward(ranks, tmp_path, save_at, looks):
    (first,) = ranks.run(save_first, str(tmp_path), save_at, looks, world_size=1)
    (then,) = ranks.run(save_first, str(tmp_path), None, looks, world_size=1)
    assert first + then == [(epoch, x, x + 1) for epoch in range(2) for x in (0, 2, 4)]


def replay():
    session = Session()
    model = torch.nn.Linear(1, 1)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batches = itertools.cycle(session.loader(torch.arange(5), 2))
    for _ in range(3):
        learn(session, model, optimizer, next(batches))
    try:
        learn(session, model, optimizer, next(batches))
    except PacelineError as error:
        return error.finding.name
    return None


def test_batches_of_a_loop_that_has_ended_are_not_guessed(ranks):
    assert ranks.run(replay, world_size=2) == ["batch-weight-unknown"] * 2


def leave_alone():
    """Rank 1 leaves before the others; return what rank 0 prints, and what it raises."""
    session, said = Session(), io.StringIO()
    model = torch.nn.Linear(1, 1)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with contextlib.redirect_stderr(said):
        for number, x in enumerate(session.loader(torch.arange(12), 4)):
            if session.rank == 1 and number == 2:
                torch.distributed.destroy_process_group()
                return ""
            try:
                learn(session, model, optimizer, x)
            except RuntimeError:
                return said.getvalue()
    return ""


def test_a_rank_whose_exchange_failed_says_how_far_it_has_come(ranks):
    text, _ = ranks.run(leave_alone, world_size=2)
    assert "rank 0: the exchange of gradients failed in backward 3 (batch 3 of epoch 0, 2" in text


class InPlace:
    """The usual idiom: each epoch shuffles what the one before has left."""

    def __init__(self, length):
        self.order = list(range(length))

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        random.shuffle(self.order)
        return iter(self.order)


def shuffle_in_place(folder, stop_after):
    session, model, optimizer = begin(folder)
    train = session.loader(torch.arange(8), 2, sampler=InPlace(8))
    session.restore("latest")
    seen = []

    def fit():
        for _ in session.epochs(3):
            for x in train:
                learn(session, model, optimizer, x)
                seen.append(x.tolist())
                if len(seen) == stop_after:
                    session.stop()

    ended(fit)
    return seen


@pytest.mark.parametrize("stop_after", [3, 6, 8])
def test_a_sampler_with_a_state_of_its_own(ranks, tmp_path, stop_after):
    (expected,) = ranks.run(shuffle_in_place, str(tmp_path / "whole"), 0, world_size=1)
    assert expected[:4] != expected[4:8]
    (first,) = ranks.run(shuffle_in_place, str(tmp_path / "stopped"), stop_after, world_size=1)
    (then,) = ranks.run(shuffle_in_place, str(tmp_path / "stopped"), 0, world_size=1)
    assert first + then == expected


class Whole(IterableDataset):
    def __iter__(self):
        return iter(range(11))


def gather_whole_stream():
    session = Session()
    loader = session.loader(Whole(), 4)
    by_batch = [session.gather(x).tolist() for x in loader]
    return by_batch, session.gather(torch.cat(list(loader))).tolist()


def test_a_whole_stream_is_gathered_in_its_order(ranks):
    for by_batch, at_once in ranks.run(gather_whole_stream, world_size=3):
        assert by_batch == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
        assert at_once == list(range(11))


class Configured(Dataset):
    def __init__(self):
        self.config = {"scale": 1}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * self.config["scale"]


def change_what_workers_hold():
    dataset = Configured()
    loader = Session().loader(DataLoader(dataset, 4, num_workers=1, persistent_workers=True))
    found = []
    for epoch in range(3):
        dataset.config["scale"] = max(1, epoch)
        found += [x.tolist() for x in loader]
    return found


def test_workers_hear_of_changes_inside_a_dataset(ranks):
    (found,) = ranks.run(change_what_workers_hold, world_size=1)
    assert found == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 2, 4, 6]]


# What is registered


def register_twice():
    session = Session()
    model = torch.nn.Linear(1, 1)
    session.register(ema=model)
    session.register(ema=model)
    try:
        session.register(ema=torch.nn.Linear(1, 1))
    except PacelineError as error:
        return error.finding.name
    return None


def test_a_name_is_of_one_object(ranks):
    assert ranks.run(register_twice, world_size=1) == ["option-contradicted"]


# Learning rates


def two_schedulers(folder, late):
    session, model, optimizer = begin(folder, lr=1.0)
    restored = session.restore("latest") if late else False
    main = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
    session.register(main=main, warmup=warmup)
    restored = restored or session.restore("latest")
    if not restored:
        for _ in range(2):
            learn(session, model, optimizer, torch.ones(2))
            warmup.step()
        main.step()
        session.save(wait=True)
    return optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("late", [False, True])
def test_two_schedulers_of_one_optimizer(ranks, tmp_path, late):
    (saved,) = ranks.run(two_schedulers, str(tmp_path), late, world_size=1)
    assert saved == pytest.approx(0.1)
    assert ranks.run(two_schedulers, str(tmp_path), late, world_size=1) == [saved]
