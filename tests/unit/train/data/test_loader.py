"""The loader, with the ranks of a world side by side in one process."""

import gc
import itertools
import weakref
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from paceline.errors import UsageError
from paceline.train.data import BatchTracker, Rows
from paceline.train.data.batch import to_device, without_rows
from paceline.train.data.sources import state_of
from unit.train.data.loaders import make

CPU = torch.device("cpu")
LENGTHS = range(1, 18)
GRID = list(itertools.product(range(1, 5), range(1, 6)))  # world size, batch size


def rows(of_rank, of_batch):
    return Rows(of_rank, of_batch, of_batch, True)


def make_all(dataset, world_size, **options):
    return [
        make(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]


def batches_of_all(loaders):
    """The epoch's batches as lists of indices, the ranks' shares one after another."""
    # Strict, because all ranks must have the same number of batches.
    return [torch.cat(shares).tolist() for shares in zip(*loaders, strict=True)]


class Recorded:
    """A dataset of its own indices that takes down what was asked of it."""

    def __init__(self, length):
        self.length, self.asked = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.asked.append(index)
        return index


@pytest.mark.parametrize(("world_size", "batch_size"), GRID)
def test_evaluation_is_exact(world_size, batch_size):
    for length in LENGTHS:
        loaders = make_all(range(length), world_size, batch_size=batch_size)
        batches = batches_of_all(loaders)
        assert list(itertools.chain(*batches)) == list(range(length))
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert {len(loader) for loader in loaders} == {len(batches)}


@pytest.mark.parametrize(("world_size", "batch_size"), GRID)
def test_training_has_every_sample_once_and_the_batches_of_one_rank(world_size, batch_size):
    options = {"batch_size": batch_size, "shuffle": True, "seed": 1}
    for length in LENGTHS:
        batches = batches_of_all(make_all(range(length), world_size, **options))
        assert sorted(itertools.chain(*batches)) == list(range(length))
        assert batches == [batch.tolist() for batch in make(range(length), **options)]


def test_reshuffles_at_each_new_iteration():
    loader, again = (make(range(40), batch_size=40, shuffle=True, seed=5) for _ in range(2))
    epochs = [next(iter(loader)).tolist() for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [batch.tolist() for _ in range(3) for batch in again] == epochs
    assert next(iter(make(range(40), batch_size=40, shuffle=True, seed=6))).tolist() != epochs[0]


def test_an_epoch_left_early_counts_as_one():
    loader = make(range(12), batch_size=4, shuffle=True)
    for _ in loader:
        break
    whole = make(range(12), batch_size=4, shuffle=True)
    list(whole)
    assert [b.tolist() for b in loader] == [b.tolist() for b in whole]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"prefetch_factor": 3}])
def test_workers_change_nothing(options):
    plain = make(range(10), batch_size=4, shuffle=True)
    loader = make(range(10), batch_size=4, shuffle=True, num_workers=1, **options)
    for _ in range(3):
        assert [b.tolist() for b in loader] == [b.tolist() for b in plain]


def test_getitems_is_used():
    class Whole(Recorded):
        def __getitems__(self, indices):
            self.asked.append(list(indices))
            return indices

    dataset = Whole(5)
    list(make(dataset, batch_size=2))
    assert dataset.asked == [[0, 1], [2, 3], [4]]


def test_collate_fn_gets_the_samples_of_a_batch():
    assert list(make(range(5), batch_size=2, collate_fn=tuple)) == [(0, 1), (2, 3), (4,)]


def test_per_rank_batch_size():
    loader = make(range(10), world_size=3, rank=1, per_rank_batch_size=2)
    assert loader.batch_size == 6
    assert [batch.tolist() for batch in loader] == [[2, 3], [8]]


def test_an_empty_dataset_has_no_batch():
    loader = make([], batch_size=4, shuffle=True)
    assert len(loader) == 0
    assert list(loader) == []


def test_a_rank_without_a_sample_gets_a_batch_of_its_structure():
    samples = [
        {"x": torch.ones(3) * i, "pair": (i, torch.ones(2, 2)), "name": str(i)} for i in range(5)
    ]
    *_, batch = make(samples, rank=2, world_size=3, batch_size=4)
    assert batch["x"].shape == (0, 3)
    assert [part.shape for part in batch["pair"]] == [(0,), (0, 2, 2)]
    assert batch["name"] == []


def test_an_empty_batch_borrows_from_its_own_batch():
    dataset = Recorded(5)
    list(make(dataset, rank=1, world_size=2, batch_size=4))
    assert dataset.asked == [2, 3, 4]


Pair = namedtuple("Pair", "x y")


def test_without_rows_keeps_types():
    x = torch.ones(4, 2)
    assert without_rows(x).shape == (0, 2)
    assert without_rows(torch.tensor(7.0)) == 7
    assert isinstance(without_rows(Pair(x, x)), Pair)
    assert isinstance(without_rows([x, (x,)])[1], tuple)
    assert without_rows(("a", "b")) == ()
    assert x.shape == (4, 2)
    nested = {"x": x}
    assert without_rows(nested)["x"].shape == (0, 2)
    assert nested["x"] is x


def test_to_device_moves_all_parts():
    meta = torch.device("meta")
    moved = to_device({"x": torch.ones(2), "rest": [Pair(torch.ones(1), "text"), 3]}, meta)
    assert moved["x"].device == meta
    assert moved["rest"][0].x.device == meta
    assert moved["rest"][0].y == "text"
    assert moved["rest"][1] == 3
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert to_device(packed, meta).data.device == meta


# Which batch a backward belongs to


def test_rows_of_each_batch():
    tracker = BatchTracker()
    loader = make(range(9), rank=1, world_size=2, batch_size=4, tracker=tracker)
    assert tracker.take() is None
    assert [tracker.take() for _ in loader] == [rows(2, 4), rows(2, 4), rows(0, 1)]


def test_a_second_backward_belongs_to_the_same_batch():
    tracker = BatchTracker()
    for _ in make(range(3), batch_size=4, tracker=tracker):
        assert tracker.take() == tracker.take() == rows(3, 3)
    assert tracker.take() == rows(3, 3)


def test_a_batch_taken_by_next_counts():
    tracker = BatchTracker()
    next(iter(make(range(3), batch_size=4, tracker=tracker)))
    assert tracker.take() == rows(3, 3)


def advance(how, loader):
    """Evaluate in one of the ways that people write."""
    if how == "to its end":
        for _ in loader:
            pass
    elif how == "left by break":
        for _ in loader:
            break
    elif how == "left by break under no_grad":
        with torch.no_grad():
            for _ in loader:
                break
    elif how == "left by an exception":
        try:
            for _ in loader:
                raise ValueError
        except ValueError:
            pass
    elif how == "held open under no_grad":
        with torch.no_grad():
            advance.held = iter(loader)
            next(advance.held)


EVALUATIONS = (
    "to its end",
    "left by break",
    "left by break under no_grad",
    "left by an exception",
    "held open under no_grad",
)


@pytest.mark.parametrize("how", EVALUATIONS)
def test_an_evaluation_between_does_not_count(how):
    tracker = BatchTracker()
    train = make(range(6), batch_size=4, tracker=tracker)
    val = make(range(7), batch_size=5, tracker=tracker)
    found = []
    for _ in train:
        advance(how, val)  # between a batch and its backward
        found.append(tracker.take())
        advance(how, val)  # and between two batches
    assert found == [rows(4, 4), rows(2, 2)]


def test_the_last_batch_may_be_used_after_its_loop():
    tracker = BatchTracker()
    for x in make(range(9), batch_size=4, tracker=tracker):
        if 8 in x:
            break
        tracker.take()
    assert tracker.take() == rows(1, 1)


def test_an_evaluation_before_any_training_does_not_count():
    tracker = BatchTracker()
    with torch.no_grad():
        list(make(range(7), batch_size=5, tracker=tracker))
    assert tracker.take() is None


def test_a_training_batch_fetched_under_no_grad_counts():
    tracker = BatchTracker()
    batches = iter(make(range(6), batch_size=4, tracker=tracker))
    val = make(range(7), batch_size=5, tracker=tracker)
    found = []
    for _ in range(2):
        with torch.no_grad():
            next(batches)
        list(val)
        found.append(tracker.take())
    assert found == [rows(4, 4), rows(2, 2)]


def test_two_live_loaders_are_refused():
    tracker = BatchTracker()
    one, other = (make(range(8), batch_size=size, tracker=tracker) for size in (4, 2))
    for _ in zip(one, other, strict=False):
        with pytest.raises(UsageError, match="batch-weight-unknown") as caught:
            tracker.take()
        break
    assert "2 loaders" in caught.value.finding.what


def test_two_live_loaders_with_a_backward_between_are_fine():
    tracker = BatchTracker()
    other = iter(make(range(8), batch_size=2, tracker=tracker))
    for _ in make(range(8), batch_size=4, tracker=tracker):
        assert tracker.take() == rows(4, 4)
        next(other)
        assert tracker.take() == rows(2, 2)


def test_batches_hoarded_before_their_backward_are_refused():
    tracker = BatchTracker()
    hoard = list(make(range(6), batch_size=4, tracker=tracker))
    assert len(hoard) == 2
    with pytest.raises(UsageError, match="batch-weight-unknown"):
        tracker.take()


def test_the_tally_forgets_loops_that_have_ended():
    tracker = BatchTracker()
    loader = make(range(4), batch_size=2, tracker=tracker)
    for _ in range(20):
        for _ in loader:
            tracker.take()
    assert len(tracker._iterations) <= 2


def test_the_tally_keeps_no_loader_alive():
    tracker = BatchTracker()
    loader = make(range(4), batch_size=2, tracker=tracker)
    list(loader)
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


# What is refused


class Endless:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("dataset", "fix"),
    [(iter(range(3)), "list(dataset)"), (Endless(), "def __len__")],
    ids=["iterator", "no length"],
)
def test_data_that_cannot_be_shared_out(dataset, fix):
    with pytest.raises(UsageError) as caught:
        make(dataset, batch_size=2)
    assert caught.value.finding.name == "data-not-shardable"
    assert fix in caught.value.finding.fix


@pytest.mark.parametrize("options", [{}, {"batch_size": 4, "per_rank_batch_size": 2}])
def test_exactly_one_batch_size(options):
    with pytest.raises(UsageError) as caught:
        make(range(3), **options)
    assert caught.value.finding.name == "option-contradicted"


@pytest.mark.parametrize("name", ["batch_size", "per_rank_batch_size"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "4", True])
def test_bad_batch_size(name, value):
    with pytest.raises(UsageError) as caught:
        make(range(3), **{name: value})
    assert caught.value.finding.name == "option-invalid"
    assert name in caught.value.finding.what


@pytest.mark.parametrize("options", [{"prefetch_factor": 2}, {"persistent_workers": True}])
def test_options_that_need_workers(options):
    with pytest.raises(UsageError) as caught:
        make(range(3), batch_size=2, num_workers=0, **options)
    assert caught.value.finding.name == "option-contradicted"
    assert "num_workers" in caught.value.finding.what


def test_what_is_seen_of_a_dataset_is_walked_through_once():
    shared = []
    for _ in range(60):
        shared = [shared, shared]
    dataset = SimpleNamespace(library=torch, shared=shared, options={"crop": {"size": 2}})
    dataset.itself = dataset
    before = state_of(dataset)
    assert state_of(dataset) == before
    dataset.options["crop"]["size"] = 3
    assert state_of(dataset) != before
