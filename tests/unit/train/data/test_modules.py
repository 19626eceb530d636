"""Each sample's randomness, adopted loaders, chosen settings, streams: in a world of one or ranks side by side."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from paceline.errors import UsageError
from paceline.train.data import BatchTracker, generator_states
from paceline.train.data.generator_states import kept_state
from paceline.train.data.loader_options import choose
from paceline.train.data.samples import in_memory, takes_batches
from unit.train.data.loaders import make

CPU = torch.device("cpu")


def refused(dataset, **options):
    with pytest.raises(UsageError) as caught:
        make(dataset, **options)
    return caught.value.finding


# Randomness of samples


class Random(Dataset):
    """Draws from all three generators for each sample."""

    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), torch.rand(()).item()


def drawn(loader, epochs=2):
    """What each sample of each epoch drew."""
    return [
        {
            int(index): values
            for batch in loader
            for index, *values in zip(*(each.tolist() for each in batch), strict=True)
        }
        for _ in range(epochs)
    ]


def test_a_sample_draws_the_same_anywhere():
    expected = drawn(make(Random(), batch_size=3, shuffle=True))
    assert expected[0] != expected[1], "each epoch draws anew"
    assert len({tuple(values) for values in expected[0].values()}) == 10
    for options in (
        {"batch_size": 7},
        {"batch_size": 3, "num_workers": 2},
        {"batch_size": 4, "shuffle": True},
    ):
        assert drawn(make(Random(), **options)) == expected
    ranks = [drawn(make(Random(), batch_size=5, rank=rank, world_size=3)) for rank in range(3)]
    assert [{**a, **b, **c} for a, b, c in zip(*ranks, strict=True)] == expected
    assert drawn(make(Random(), batch_size=3, seed=1)) != expected


def test_a_subset_of_what_draws_draws_by_its_own_index():
    whole = drawn(make(Random(), batch_size=3), epochs=1)
    part = drawn(make(Subset(Random(), [4, 2]), batch_size=1), epochs=1)
    assert set(part[0]) == {4, 2}
    assert part[0][4] != whole[0][4]


def test_loading_leaves_the_global_generators_alone():
    def state():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = state()
    list(make(Random(), batch_size=3, shuffle=True))
    list(make(TensorDataset(torch.ones(4)), batch_size=3, shuffle=True, num_workers=1))
    assert state() == before


SEEDS_BEFORE_NUMPY = """
import numpy
from paceline.train.data.generator_states import seed_all
seed_all(3)
print(numpy.random.rand())
"""


def test_numpy_is_seeded_before_its_generators_are_imported():
    command = [sys.executable, "-c", SEEDS_BEFORE_NUMPY]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    expected = np.random.RandomState(3).rand()
    assert float(done.stdout) == expected


def test_kept_state_is_kept_after_an_exception():
    before = random.getstate()
    with pytest.raises(KeyError), kept_state():
        random.random()
        raise KeyError
    assert random.getstate() == before


def test_what_is_known_to_draw_nothing():
    tensors = TensorDataset(torch.ones(4))
    assert in_memory(Subset(tensors, [1]))
    assert in_memory(ConcatDataset([tensors, tensors]))
    assert in_memory([1, 2])
    assert not in_memory(Subset(Random(), [1]))
    assert not in_memory(ConcatDataset([tensors, Random()]))


class Sometimes(Random):
    """Draws for one sample only, and from one generator only."""

    def __init__(self, draw):
        super().__init__()
        self.draw, self.asked = draw, []

    def __getitem__(self, index):
        self.asked.append(index)
        return index, self.draw() if index == 7 else 0.0


@pytest.mark.parametrize(
    "draw", [random.random, lambda: float(np.random.randn()), lambda: torch.rand(()).item()]
)
def test_drawing_is_noticed_when_it_happens(draw):
    dataset = Sometimes(draw)
    first, second = drawn(make(dataset, batch_size=3))
    assert first[7] != second[7] != [0.0]
    assert drawn(make(Sometimes(draw), batch_size=5, shuffle=True)) == [first, second]
    assert dataset.asked == [*range(9), 6, 7, 8, 9, *range(10)], (
        "loaded twice where it was noticed, once elsewhere"
    )


GOLDEN = [
    [0.6258360268089734, 0.919901902075358, 0.35910171270370483],
    [0.7005070423751857, 0.38961965346975636, 0.6758939623832703],
    [0.12423665977079712, 0.17985339990144456, 0.32918763160705566],
]


def test_what_a_sample_draws_is_the_same_in_every_version():
    """A resumed run continues the augmentation of the version that made the checkpoint."""
    epochs = drawn(make(Random(), batch_size=3, seed=3))
    assert [epochs[0][0], epochs[0][9], epochs[1][9]] == GOLDEN


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (random.random, "python"),
        (lambda: random.gauss(0, 1), "python"),
        (lambda: float(np.random.randn()), "numpy"),
        (lambda: torch.rand(()).item(), "torch"),
    ],
)
def test_only_what_a_dataset_draws_from_is_set(monkeypatch, draw, name):
    classes = {
        "python": generator_states.PythonTwister,
        "numpy": generator_states.NumpyTwister,
        "torch": generator_states.TorchTwister,
    }
    used = []
    for key, twister in classes.items():

        def use(self, row, *, key=key, use_row=twister.use):
            used.append(key)
            use_row(self, row)

        monkeypatch.setattr(twister, "use", use)
    first, _ = drawn(make(Sometimes(draw), batch_size=3))
    assert first[7] != [0.0]
    assert used == [name] * 14  # samples 6 to 9, and an epoch


def test_the_memory_of_python_s_generator_shows_every_draw(monkeypatch):
    for is_known in (True, False):
        monkeypatch.setattr(generator_states, "python_is_known", lambda value=is_known: value)
        before = random.getstate()
        for draw in (random.random, random.getrandbits, random.gauss, random.shuffle):
            with kept_state() as states:
                assert generator_states.changed_since(states) == ()
                draw(*{"getrandbits": [8], "shuffle": [[1, 2, 3]]}.get(draw.__name__, []))
                assert generator_states.changed_since(states) == ("python",)
                assert generator_states.changed_since(states, except_for=("python",)) == ()
            assert random.getstate()[1] == before[1]


class AtOnce(Random):
    def __getitems__(self, indices):
        return [(index, random.random(), 0.0, 0.0) for index in indices]


def test_a_dataset_that_takes_batches_draws_for_its_share():
    assert takes_batches(Subset(AtOnce(), [1]))
    assert not takes_batches(Subset(Random(), [1]))
    found = drawn(make(AtOnce(), batch_size=4))
    assert drawn(make(AtOnce(), batch_size=4)) == found
    assert found[0] != found[1]
    loader = make(AtOnce(), batch_size=4)
    assert "depends on the number of ranks" in loader.describe()
    assert "depends" not in make(TensorDataset(torch.ones(3)), batch_size=4).describe()


class Where(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return int(get_worker_info().dataset is self)


def test_a_worker_sees_the_users_own_dataset():
    assert [each.tolist() for each in make(Where(), batch_size=2, num_workers=1)] == [[1, 1]]


# The batch of tensors in one piece


class Point(NamedTuple):
    x: Any
    y: Any


def test_tensors_are_stacked_as_by_default():
    data = TensorDataset(torch.arange(5), torch.arange(10).view(5, 2))
    ours = list(make(data, batch_size=2))
    theirs = list(DataLoader(data, batch_size=2))
    assert [type(batch) for batch in ours] == [type(batch) for batch in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "sample",
    [
        (np.ones(3, np.float32), 1),
        [np.float64(2.0), np.array(3), "name"],
        {"x": np.ones((2, 2), np.uint8), "y": {"z": 1.5}},
        (torch.ones(3), Point(torch.zeros(2), np.arange(2))),
        np.zeros((0, 2)),
        torch.ones(100_000),  # too large for the pipe
        torch.ones(3, dtype=torch.bfloat16),
        np.ones(3)[::2],
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_samples_are_collated_as_by_default(sample, num_workers):
    data = [sample] * 5
    ours = list(make(data, batch_size=2, num_workers=num_workers))
    theirs = list(DataLoader(data, batch_size=2))
    assert [described(batch) for batch in ours] == [described(batch) for batch in theirs]


def described(part):
    """A batch as plain data that can be compared, with all types."""
    if isinstance(part, torch.Tensor):
        return str(part.dtype), list(part.shape), part.tolist()
    if isinstance(part, dict):
        return "dict", {key: described(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part).__name__, [described(value) for value in part]
    return part


def test_arrays_that_differ_are_refused_as_by_default():
    data = [np.ones(2), np.ones(3)]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(make(data, batch_size=2))


# Adopted loaders


def of_torch(loader):
    return [batch[0].tolist() for batch in loader]


DATA = TensorDataset(torch.arange(11))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, batch_size=4),
        DataLoader(DATA, batch_size=4, drop_last=True),
        DataLoader(DATA, batch_size=4, sampler=[3, 1, 4, 1, 5]),
        DataLoader(DATA, batch_sampler=BatchSampler(range(7), 3, drop_last=False)),
        DataLoader(DATA, batch_sampler=[[1], [2, 3, 4]]),
        DataLoader(
            DATA, batch_size=4, collate_fn=lambda rows: [torch.stack([row[0] * 2 for row in rows])]
        ),
    ],
)
def test_an_adopted_loader_yields_what_it_did(loader):
    expected = of_torch(loader)
    assert of_torch(make(loader)) == expected
    shares = [of_torch(make(loader, rank=rank, world_size=3)) for rank in range(3)]
    assert [list(itertools.chain(*parts)) for parts in zip(*shares, strict=True)] == expected
    assert len(make(loader)) == len(expected)


def test_an_adopted_batch_size_may_count_for_each_rank():
    assert make(DataLoader(DATA, batch_size=2), world_size=3, per_rank=True).batch_size == 6
    assert refused(DATA, per_rank=True, batch_size=2).name == "option-contradicted"


class Fetched(Dataset):
    """Samples that say how many workers there are, and which process read them."""

    def __init__(self):
        self.num_fetched = torch.zeros(40, dtype=torch.int64).share_memory_()

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.num_fetched[index] += 1
        return get_worker_info().num_workers, os.getpid()


def test_an_adopted_loader_keeps_its_workers():
    dataset = Fetched()
    loader = make(DataLoader(dataset, batch_size=1, num_workers=2, prefetch_factor=3))
    batches = iter(loader)
    ((num_workers, _),) = torch.stack(next(batches), 1).tolist()
    deadline = time.monotonic() + 10
    while dataset.num_fetched.sum() < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (num_workers, int(dataset.num_fetched.sum())) == (
        2,
        7,
    )  # three ahead by each, and the one that is here
    loader.release()


class Odd(DataLoader):
    def __iter__(self):
        return iter([1, 2])


@pytest.mark.parametrize(
    ("dataset", "options", "name", "text"),
    [
        (Odd(DATA), {}, "data-not-shardable", "Odd makes batches in its own __iter__"),
        (DataLoader(DATA, batch_size=None), {}, "data-not-shardable", "no batch size"),
        (DataLoader(DATA), {"batch_size": 4}, "option-contradicted", "batch_size"),
        (DataLoader(DATA), {"shuffle": True}, "option-contradicted", "shuffle"),
        (
            DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
            {},
            "data-not-shardable",
            "DistributedSampler",
        ),
        (
            DATA,
            {"batch_size": 4, "shuffle": True, "sampler": [1]},
            "option-contradicted",
            "sampler",
        ),
        (DATA, {"batch_size": 4, "batch_sampler": [[1]]}, "option-contradicted", "batch_sampler"),
        (DATA, {"batch_size": 4, "last": "dorp"}, "option-invalid", "last"),
        (DATA, {"batch_size": 4, "sharded": True}, "option-contradicted", "streams"),
        (DATA, {"batch_size": 4, "num_wokers": 1}, "option-unknown", "num_wokers"),
    ],
)
def test_what_is_refused(dataset, options, name, text):
    finding = refused(dataset, **options)
    assert finding.name == name
    assert text in finding.what


# Streams


class Numbers(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class Shuffled(Numbers):
    """Shuffles with a global generator and draws for each sample."""

    def __iter__(self):
        order = list(range(self.length))
        random.shuffle(order)
        for number in order:
            yield number + 100 * random.randrange(1000)


class OfWorkers(Numbers):
    """Shares itself out among workers, as torch's documentation does it."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id if info else 0, self.length, info.num_workers if info else 1))


class OfRanks(Numbers):
    def __iter__(self):
        return iter(range(get_rank(), self.length, 2))


def get_rank():
    return 0


class Bounded(Numbers):
    """Its workers' function cuts it, as torch's documentation does it."""

    def __init__(self, length):
        self.start, self.end = 0, length

    def __iter__(self):
        return iter(range(self.start, self.end))


def cut(worker):
    info = get_worker_info()
    each = -(-info.dataset.end // info.num_workers)
    info.dataset.start = worker * each
    info.dataset.end = min(info.dataset.start + each, info.dataset.end)


class Buffered(Numbers):
    """Shuffles in a buffer, with a global generator, while it is read."""

    def __iter__(self):
        held = []
        for number in range(self.length):
            held.append(number)
            if len(held) == 4:
                yield held.pop(int(torch.randint(4, ())))
        yield from held


def collate_drawing(rows):
    torch.rand(3 * len(rows))
    return torch.tensor(rows)


def read(stream, world_size=1, **options):
    loaders = [
        make(stream, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    return [
        list(itertools.chain(*(part.tolist() for part in parts)))
        for parts in zip(*loaders, strict=True)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize(("length", "batch_size"), [(0, 3), (1, 3), (7, 3), (9, 3), (5, 8)])
def test_a_whole_stream_is_shared_out(length, batch_size, world_size):
    expected = [
        list(range(start, min(start + batch_size, length)))
        for start in range(0, length, batch_size)
    ]
    assert read(Numbers(length), world_size, batch_size=batch_size) == expected
    dropped = [batch for batch in expected if len(batch) == batch_size]
    assert read(Numbers(length), world_size, batch_size=batch_size, last="drop") == dropped


def test_workers_share_a_stream_out():
    assert read(Numbers(17), 2, batch_size=3, num_workers=2) == read(Numbers(17), batch_size=3)


def test_a_stream_that_shuffles_is_the_same_on_all_ranks():
    loader = make(Shuffled(20), batch_size=6)
    expected = [[batch.tolist() for batch in loader] for _ in range(2)]
    assert expected[0] != expected[1]
    before = random.getstate()
    assert read(Shuffled(20), 3, batch_size=6) == expected[0]
    assert random.getstate() == before
    assert read(Shuffled(20), 2, batch_size=6, num_workers=1) == expected[0]


def test_a_stream_may_share_itself_out_among_workers():
    expected = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert read(OfWorkers(9), batch_size=3, num_workers=2) == expected
    assert read(OfWorkers(9), 2, batch_size=3, num_workers=2) == expected
    assert read(OfWorkers(9), batch_size=3) == expected
    assert read(Bounded(9), batch_size=3, num_workers=2, worker_init_fn=cut) == expected


def test_what_collation_draws_does_not_move_the_stream():
    expected = read(Buffered(20), batch_size=5)
    before = torch.get_rng_state()
    for options in ({}, {"num_workers": 2}):
        for world_size in (1, 3):
            assert (
                read(Buffered(20), world_size, batch_size=5, collate_fn=collate_drawing, **options)
                == expected
            )
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_that_seems_to_share_itself_out_is_asked_about():
    finding = refused(OfRanks(9), batch_size=3)
    assert finding.name == "data-not-shardable"
    assert "sharded=True" in finding.fix
    assert "sharded=False" in finding.fix
    assert read(OfRanks(6), batch_size=3, sharded=False) == [[0, 2, 4]]


def test_the_length_of_a_stream_is_not_known():
    with pytest.raises(TypeError, match="Numbers"):
        len(make(Numbers(3), batch_size=2))


def test_a_stream_has_no_order_of_ours():
    assert refused(Numbers(3), batch_size=2, shuffle=True).name == "option-contradicted"


# Position


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("stop", range(1, 7))
def test_a_loader_continues_where_another_stood(stop, accumulate, stream):
    data = Numbers(17) if stream else list(range(17))
    options = {} if stream else {"shuffle": True}
    whole = [batch.tolist() for batch in make(data, batch_size=3, **options)]
    tracker = BatchTracker()
    loader = make(data, batch_size=3, accumulate=accumulate, tracker=tracker, **options)
    seen = []
    for batch in loader:
        seen.append(batch.tolist())
        tracker.take()
        if len(seen) == stop:
            state = loader.state_dict()
            assert loader.under_way
            break
    complete = stop if stop == 6 else stop - stop % accumulate
    other = make(data, batch_size=3, accumulate=accumulate, rank=0, world_size=1, **options)
    other.load_state_dict(state)
    assert whole[:complete] + [batch.tolist() for batch in other] == whole
    second = [batch.tolist() for batch in other]
    assert sorted(itertools.chain(*second)) == list(range(17))
    assert stream or second != whole, "then comes the next epoch"


def test_a_batch_before_its_backward_is_served_again():
    tracker = BatchTracker()
    loader = make(list(range(9)), batch_size=3, tracker=tracker)
    iterator = iter(loader)
    next(iterator)
    tracker.take()
    assert loader.state_dict()["done"] == 3
    next(iterator)
    assert loader.state_dict()["done"] == 3
    tracker.take()
    assert loader.state_dict()["done"] == 6


def test_an_evaluation_is_no_position():
    loader = make(list(range(9)), batch_size=3)
    with torch.no_grad():
        for _ in loader:
            assert not loader.under_way
            assert loader.state_dict() == {"epoch": 1, "done": 0, "length": 9}


def test_an_evaluation_with_autograd_is_no_position_either():
    tracker = BatchTracker()
    train, test = (make(list(range(9)), batch_size=3, tracker=tracker) for _ in range(2))
    for _ in train:
        assert train.under_way, "also before the first backward of all"
        tracker.take()
    for _ in test:
        assert not test.under_way
    for _ in train:
        assert train.under_way
        break


def test_another_dataset_in_the_middle_of_an_epoch():
    loader = make(list(range(9)), batch_size=3)
    loader.load_state_dict({"epoch": 1, "done": 3, "length": 12})
    assert loader.state_dict() == {"epoch": 1, "done": 3, "length": 12}
    with pytest.raises(UsageError) as caught:
        next(iter(loader))
    assert caught.value.finding.name == "data-changed"
    make(list(range(9)), batch_size=3).load_state_dict({"epoch": 1, "done": 0, "length": 12})


# Chosen settings


@pytest.mark.parametrize(
    ("facts", "workers", "text"),
    [
        (
            {"cpus": 8, "ranks": 2},
            3,
            "3 workers a rank (8 usable CPUs / 2 ranks, one for training)",
        ),
        ({"cpus": 2, "ranks": 2}, 0, "no workers a rank"),
        ({"cpus": 128, "ranks": 1}, 8, "8 workers"),
        ({"cpus": 1, "ranks": 4}, 0, "no workers"),
        ({"cpus": 8, "ranks": 1, "in_memory": True}, 0, ""),
        ({"cpus": 8, "ranks": 1, "stream": True}, 1, "read the whole stream"),
        ({"cpus": 8, "ranks": 1, "can_fork": False}, 0, "cannot fork"),
        ({"cpus": 8, "ranks": 1, "on_gpu": True}, 7, "pinned memory"),
    ],
)
def test_chosen_settings(facts, workers, text):
    given = {"in_memory": False, "stream": False, "on_gpu": False, "can_fork": True, **facts}
    found = choose(**given)
    assert found.num_workers == workers
    assert (text in found.reason) if text else not found.reason
    assert found.pin_memory == given["on_gpu"]


def test_chosen_workers_outlive_an_epoch():
    loader = make(Fetched(), batch_size=2, cpus=3)
    first, second = (
        {tuple(row) for batch in loader for row in torch.stack(batch, 1).tolist()} for _ in range(2)
    )
    assert [num_workers for num_workers, _ in first] == [2, 2]
    assert first == second
    loader.release()
    assert "2 workers" in loader.describe()


# Workers that stay from epoch to epoch


class OfProcess(Dataset):
    """Each sample is the process that loaded it, and what the script may have changed."""

    def __init__(self):
        self.scale, self.small, self.large = 1, np.zeros(8), np.zeros(1 << 18)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return os.getpid(), self.scale + self.small[0] + self.large.mean()


def epochs_of(loader, dataset, *changes):
    """The worker's process and what it saw, in one epoch after each change."""
    seen = []
    for change in changes:
        change(dataset)
        ((pids, values),) = loader
        seen.append((int(pids[0]), float(values[0])))
    return seen


def nothing(dataset):
    pass


@pytest.mark.parametrize(
    ("options", "stay"),
    [({}, True), ({"persistent_workers": True}, True), ({"persistent_workers": False}, False)],
)
def test_workers_of_a_users_dataloader_stay_unless_an_option_says_otherwise(options, stay):
    dataset = OfProcess()
    loader = make(DataLoader(dataset, 4, num_workers=1), **options)
    (first, _), (second, _) = epochs_of(loader, dataset, nothing, nothing)
    assert (first == second) is stay
    loader.release()


def double(dataset):
    dataset.scale *= 2


def fill_small(dataset):
    dataset.small[:] = 5


def fill_large(dataset):
    dataset.large[:] = 7


@pytest.mark.parametrize(("change", "value"), [(double, 2), (fill_small, 6), (fill_large, 8)])
def test_workers_that_stay_see_what_the_script_changes_between_epochs(change, value):
    dataset = OfProcess()
    loader = make(DataLoader(dataset, 4, num_workers=1))
    assert [seen for _, seen in epochs_of(loader, dataset, nothing, change, nothing)] == [
        1,
        value,
        value,
    ]
    loader.release()
