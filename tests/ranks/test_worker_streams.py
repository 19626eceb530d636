"""Streams that divide themselves among workers: the order of torch's DataLoader, and a resume inside an epoch."""

import random
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from paceline import Session
from paceline.errors import PacelineError

SIZES = (3, 11, 8, 0)  # samples of each worker's part: some end early


class Parts(IterableDataset):
    """Each worker reads its part; the second number is drawn at random."""

    def __iter__(self):
        info = get_worker_info()
        part, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(part, len(SIZES), step):
            for sample in range(SIZES[number]):
                yield float(100 * number + sample), random.random()


class OfInit(IterableDataset):
    """Each worker reads the part that ``worker_init_fn`` has set."""

    number = 0

    def __iter__(self):
        return iter(
            [(float(100 * self.number + sample), 0.0) for sample in range(SIZES[self.number])]
        )


def set_part(worker):
    get_worker_info().dataset.number = worker


def trained(
    dataset,
    workers,
    *,
    accumulate=1,
    stop=None,
    place=None,
    size=2,
    collate=None,
    epochs=1,
    init=None,
    last="exact",
):
    """The samples of each batch on this rank, and the loader's position after ``stop`` batches."""
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # few CPUs
    session = Session(seed=0, accumulate=accumulate)
    model = session.setup(nn.Linear(1, 1))
    loader = session.loader(
        dataset,
        batch_size=size,
        num_workers=workers,
        sharded_by_worker=True,
        worker_init_fn=init,
        collate_fn=collate,
        last=last,
    )
    if place is not None:
        loader.load_state_dict(place)
    batches, state = [], None
    for _ in range(epochs):
        for first, second in loader:
            session.backward(model(first.float()[:, None]).mean())
            rows = first[: loader.rows].tolist(), second[: loader.rows].tolist()
            batches.append(list(zip(*rows, strict=True)))
            if len(batches) == stop:
                state = loader.state_dict()
                break
        if state is not None:
            break
    loader.release()
    return batches, state or loader.state_dict()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_the_order_is_that_of_torch(workers):
    theirs = [numbers.tolist() for numbers, _ in DataLoader(Parts(), 2, num_workers=workers)]
    assert [[x for x, _ in batch] for batch in trained(Parts(), workers)[0]] == theirs


@pytest.mark.parametrize(("dataset", "init"), [(Parts, None), (OfInit, set_part)])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_resume_continues_the_order_wherever_it_was_left(dataset, init, workers):
    whole, _ = trained(dataset(), workers, epochs=2, init=init)
    num_batches = len(whole) // 2
    assert whole[0] != whole[num_batches] or dataset is OfInit, "another epoch draws other numbers"
    for stop in {1, 2, 3, 4, 6, num_batches - 1}:
        begun, state = trained(dataset(), workers, stop=stop, init=init)
        rest, _ = trained(dataset(), workers, place=state, epochs=2, init=init)
        assert begun + rest == whole


@pytest.mark.parametrize("accumulate", [2, 3])
def test_a_group_ends_with_the_last_worker(accumulate):
    whole, _ = trained(Parts(), 3, accumulate=accumulate)
    begun, state = trained(Parts(), 3, accumulate=accumulate, stop=5)
    rest, _ = trained(Parts(), 3, accumulate=accumulate, place=state)
    assert begun[: 5 // accumulate * accumulate] + rest == whole


def test_a_resume_with_another_batch_size_loses_no_sample():
    begun, state = trained(Parts(), 3, stop=4)
    rest, _ = trained(Parts(), 3, place=state, size=3)
    assert sorted(x for batch in begun + rest for x, _ in batch) == sorted(
        float(100 * part + number) for part, size in enumerate(SIZES) for number in range(size)
    )


def test_the_same_position_is_saved_again_before_a_loop():
    _, state = trained(Parts(), 3, stop=4)
    loader = Session(seed=0).loader(Parts(), 2, num_workers=3, sharded_by_worker=True)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert (state["workers"], state["turn"]) == ([3, 2, 2], 1)


def test_an_evaluation_leaves_the_position():
    whole, _ = trained(Parts(), 2)
    begun, state = trained(Parts(), 2, stop=5)
    session = Session(seed=0)
    model = session.setup(nn.Linear(1, 1))
    loader = session.loader(Parts(), batch_size=2, num_workers=2, sharded_by_worker=True)
    loader.load_state_dict(state)
    with torch.no_grad():
        assert len(list(loader)) == len(whole)
    assert loader.state_dict() == state
    next(iter(loader))  # a look at the first batch
    assert loader.state_dict() == state
    rest = []
    for first, _ in loader:
        session.backward(model(first.float()[:, None]).mean())
        rest.append(first.tolist())
    loader.release()
    assert rest == [[x for x, _ in batch] for batch in whole[len(begun) :]]


def with_noise(samples):
    return torch.tensor([x for x, _ in samples]), torch.rand(len(samples))


def test_what_collate_fn_draws_is_the_same_after_a_resume():
    whole, _ = trained(Parts(), 3, collate=with_noise)
    begun, state = trained(Parts(), 3, stop=4, collate=with_noise)
    rest, _ = trained(Parts(), 3, place=state, collate=with_noise)
    assert begun + rest == whole


def test_short_batches_are_left_out_of_each_part():
    batches, _ = trained(Parts(), 3, last="drop")
    assert [len(batch) for batch in batches] == [2] * (1 + 5 + 4)


def rest_of(state, workers, **options):
    try:
        options = {"sharded_by_worker": True, **options}
        loader = Session(seed=0).loader(Parts(), batch_size=2, num_workers=workers, **options)
        loader.load_state_dict(state)
    except PacelineError as error:
        return error.finding.name, error.finding.fix
    return None


@pytest.mark.parametrize("stop", [3, None])
def test_another_number_of_workers_is_refused(stop):
    _, state = trained(Parts(), 2, stop=stop)
    name, fix = rest_of(state, 3)
    assert name == "data-changed"
    assert "num_workers=2" in fix


def test_inside_an_epoch_a_stream_is_not_divided_in_another_way():
    _, divided = trained(Parts(), 2, stop=3)
    assert rest_of(divided, 0, sharded_by_worker=False)[0] == "data-changed"
    whole = {"epoch": 0, "done": 4, "length": -1}
    assert rest_of(whole, 2)[0] == "data-changed"
    assert rest_of({**whole, "done": 0}, 2) is None


def test_a_loader_with_another_number_of_workers_takes_a_place_between_epochs():
    session = Session(seed=0)
    first = session.loader(Parts(), batch_size=2, num_workers=2, sharded_by_worker=True)
    session.loader(Parts(), 2, num_workers=1, sharded_by_worker=True, instead_of=first)


def test_what_is_no_stream_or_has_no_number_is_refused():
    assert rest_of({"done": 0}, None)[0] == "option-contradicted"
    with pytest.raises(PacelineError):
        Session(seed=0).loader(torch.ones(3), batch_size=2, num_workers=2, sharded_by_worker=True)


def joined(shares):
    """The batches, of which each rank has a share."""
    return [[sample for share in batch for sample in share] for batch in zip(*shares, strict=True)]


def resumed(place, stop):
    return trained(Parts(), 3, place=place, stop=stop)


def test_ranks_share_the_batches_of_each_worker(ranks):
    (whole,) = [batches for batches, _ in ranks.run(trained, Parts(), 3, world_size=1)]
    for world_size in (2, 3):
        shares = [batches for batches, _ in ranks.run(trained, Parts(), 3, world_size=world_size)]
        assert joined(shares) == whole
    states = [state for _, state in ranks.run(resumed, None, 6, world_size=2)]
    rests = [batches for batches, _ in ranks.run(resumed, states[0], None, world_size=2)]
    assert joined(rests) == whole[6:]


def other_numbers(workers):
    session = Session(seed=0)
    session.setup(nn.Linear(1, 1))
    loader = session.loader(
        Parts(), batch_size=2, num_workers=workers + session.rank, sharded_by_worker=True
    )
    try:
        list(loader)
    except PacelineError as error:
        return error.finding.name
    finally:
        loader.release()


def test_ranks_with_other_numbers_of_workers_are_refused(ranks):
    assert ranks.run(other_numbers, 1, world_size=2) == ["data-not-shardable"] * 2


def own_parts(workers):
    session = Session(seed=0)
    loader = session.loader(
        Parts(), per_rank_batch_size=2, num_workers=workers, sharded=True, sharded_by_worker=True
    )
    with torch.no_grad():
        found = [numbers.tolist() for numbers, _ in loader if loader.rows]
    loader.release()
    return found


def test_each_rank_may_have_a_stream_of_its_own(ranks):
    theirs = [numbers.tolist() for numbers, _ in DataLoader(Parts(), 2, num_workers=2)]
    assert ranks.run(own_parts, 2, world_size=2) == [theirs] * 2
