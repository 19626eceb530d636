"""What loops over DataLoaders show: indices, first batches and ends, on torch's own iterators in this process."""

import os

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from paceline import counters
from paceline.launch.probe import loops, orders, probe

DATA = TensorDataset(torch.arange(100.0).reshape(100, 1))


@pytest.fixture
def slot():
    made = memoryview(bytearray(counters.SLOT_BYTES)).cast("q")
    uninstall = probe.install(made)
    yield made
    uninstall()


@pytest.fixture
def step():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def make(batch):
        model(batch[0]).sum().backward()
        optimizer.step()

    return make


def shared(rank=0, **options):
    return DistributedSampler(DATA, num_replicas=2, rank=rank, **options)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (3, [3]),
        ([3, 1], [3, 1]),
        ((3, 1), [3, 1]),
        (range(3), [0, 1, 2]),
        (torch.tensor(3), [3]),
        (torch.tensor([3, 1]), [3, 1]),
        ([torch.tensor(3), torch.tensor(1)], [3, 1]),
        ("key", None),
        (["a", "b"], None),
        ((0, [3, 1]), None),  # a request of paceline's own loader, whose order is right
        ([[1, 2], [3]], None),
        (0.5, None),
        (None, None),
        (list(range(1000)), list(range(64))),
    ],
)
def test_what_samplers_ask_for(asked, found):
    assert orders.whole_numbers(asked) == found


@pytest.mark.parametrize(
    ("indices", "mixed"),
    [
        (list(range(64)), False),
        ([0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 0], False),  # padded from the front
        ([5, 1, 3, 2], False),  # too few
        ([0, 5, 1, 7, 2, 9, 3, 8, 4, 6], True),
        (list(range(20, 0, -1)), True),
        ([], False),
    ],
)
def test_an_order_looks_shuffled_or_not(indices, mixed):
    assert orders.is_mixed(indices) is mixed


class _Wrapped:
    def __init__(self, batch_sampler):
        self.batch_sampler = batch_sampler


class _Holding:
    def __init__(self, order):
        self._size, self._order = 4, order


class _Own:
    def set_epoch(self, epoch):
        pass


@pytest.mark.parametrize(
    ("sampler", "shuffles"),
    [
        (RandomSampler(DATA), True),
        (SubsetRandomSampler([1, 2]), True),
        (SequentialSampler(DATA), False),
        (shared(), True),
        (shared(shuffle=False), False),
        (BatchSampler(RandomSampler(DATA), 2, False), True),
        (_Wrapped(BatchSampler(shared(), 2, False)), True),
        (_Own(), True),
        (_Holding(shared()), True),
        (_Holding(shared(shuffle=False)), False),
        ([[1, 2]], False),
        (None, False),
    ],
)
def test_which_samplers_are_there_to_shuffle(sampler, shuffles):
    assert orders.means_to_shuffle(sampler) is shuffles


@pytest.mark.parametrize(
    "batch",
    [
        None,
        torch.zeros(1000),
        torch.tensor([1.0, 2.0]),
        torch.empty(5, device="meta"),
        object(),
        [object()],
        torch.eye(3).to_sparse(),
    ],
    ids=["nothing", "zeros", "two values", "no memory", "an object", "a list", "sparse"],
)
def test_a_batch_with_too_little_to_tell_has_no_fingerprint(batch):
    assert orders.fingerprint(batch) == 0


def test_a_fingerprint_is_that_of_the_content():
    one, other = torch.randn(64, 3, 8, 8), torch.randn(64, 3, 8, 8)
    batch = {"x": one, "y": [torch.arange(64), "name"]}
    same = {"x": one.clone(), "y": [torch.arange(64), "name"]}
    assert orders.fingerprint(batch) == orders.fingerprint(same) != 0
    assert orders.fingerprint(batch) != orders.fingerprint({**batch, "x": other})
    assert orders.fingerprint(one.numpy()) == orders.fingerprint(one)


def test_a_digest_is_the_same_in_every_process():
    assert orders.digest([1, 2, 3]) == -3301214388581657769
    assert orders.digest([]) != 0


def run(step, loader, *, batches=1000):
    for number, batch in enumerate(loader):
        if number == batches:
            break
        step(batch)


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 1, "persistent_workers": True}], ids=["none", "one"]
)
def test_an_order_that_comes_back_is_seen(slot, step, workers):
    loader = DataLoader(DATA, batch_size=10, sampler=shared(), **workers)
    run(step, loader)
    assert slot[counters.SAME_ORDER] == 0
    run(step, loader)
    assert (slot[counters.SAME_ORDER], slot[counters.ORDER_INDICES]) == (2, 50)


@pytest.mark.parametrize("batch_size", [64, 100])
def test_a_loop_is_compared_with_the_one_before_and_not_with_itself(slot, step, batch_size):
    """All indices that are compared are known with the first batch."""
    data = TensorDataset(torch.arange(1000.0).reshape(1000, 1))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        run(step, DataLoader(data, batch_size=batch_size, sampler=sampler))
    assert slot[counters.SAME_ORDER] == 0
    run(step, DataLoader(data, batch_size=batch_size, sampler=sampler))
    assert (slot[counters.SAME_ORDER], slot[counters.ORDER_INDICES]) == (4, 64)


def test_an_order_that_another_training_had_is_not_told(slot):
    sampler = shared()
    for _ in range(3):
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for batch in DataLoader(DATA, batch_size=10, sampler=sampler):
            model(batch[0]).sum().backward()
            optimizer.step()
    assert slot[counters.SAME_ORDER] == 0


def test_an_order_that_came_back_later_is_told_with_its_number(slot, step):
    sampler = shared()
    loader = DataLoader(DATA, batch_size=10, sampler=sampler)
    for epoch in (0, 1, 2, 2):
        sampler.set_epoch(epoch)
        run(step, loader)
    assert slot[counters.SAME_ORDER] == 4


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, batch_size=10, shuffle=True),
        DataLoader(DATA, batch_size=10),
        DataLoader(DATA, batch_size=10, sampler=shared(shuffle=False)),
        DataLoader(DATA, batch_size=1, sampler=shared()),
    ],
    ids=["shuffle", "in order", "shared in order", "left early"],
)
def test_other_orders_are_not_told(slot, step, loader):
    for _ in range(3):
        run(step, loader, batches=4)
    assert slot[counters.SAME_ORDER] == 0


def test_loops_without_a_step_are_not_looked_at(slot):
    loader = DataLoader(DATA, batch_size=10, sampler=shared())
    for _ in range(3):
        list(loader)
    assert (slot[counters.SAME_ORDER], slot[counters.LOOPS], slot[counters.BATCHES_BEFORE]) == (
        0,
        0,
        15,
    )


def test_an_evaluation_that_comes_before_the_last_step_is_no_training(slot, step):
    """As with loaders that fetch ahead: the training loop has been asked for its end before its last step."""
    train, held_out = (
        iter(DataLoader(DATA, batch_size=50, sampler=shared())),
        DataLoader(DATA, batch_size=10),
    )
    batch = next(train)
    list(held_out)
    assert next(train, None) is None
    step(batch)
    list(held_out)
    assert slot[counters.SAME_ORDER] == 0
    assert list(held_out._get_iterator().__dict__["_paceline_loop"].indices) == []


def test_ends_of_training_loops_are_counted(slot, step):
    loader, held_out = DataLoader(DATA, batch_size=10), DataLoader(DATA, batch_size=25)
    run(step, loader)
    list(held_out)
    run(step, DataLoader(DATA, batch_size=20))
    list(held_out)
    run(step, loader, batches=3)  # which fetches one more
    read = [
        slot[place]
        for place in (counters.LOOPS, counters.LOOP_BATCHES, counters.FIRST_LOOP_BATCHES)
    ]
    assert read == [2, 5, 10]
    assert slot[counters.BATCHES] - slot[counters.BATCHES_BEFORE] == 4


def test_a_stream_ends_too(slot, step):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([torch.ones(1)] * 7)

    for _ in range(2):
        for batch in DataLoader(Stream(), batch_size=2):
            step([batch])
    assert [slot[place] for place in (counters.LOOPS, counters.LOOP_BATCHES)] == [2, 4]
    assert slot[counters.SAME_ORDER] == 0


def test_the_last_batch_is_the_end_for_who_asks_for_no_more(slot, step):
    """Lightning knows the length, and does not ask."""
    iterator = iter(DataLoader(DATA, batch_size=20))
    for _ in range(5):
        assert slot[counters.LOOPS] == 0
        step(next(iterator))
    assert [slot[place] for place in (counters.LOOPS, counters.LOOP_BATCHES)] == [1, 5]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_loop_of_one_batch_ends(slot, step, ahead):
    for loops_before in range(3):
        iterator = iter(DataLoader(DATA, batch_size=100))
        batch = next(iterator)
        assert (next(iterator, None) if ahead else None) is None
        step(batch)
        assert [slot[place] for place in (counters.LOOPS, counters.LOOP_BATCHES)] == [
            loops_before + 1,
            1,
        ]
        assert slot[counters.BATCHES] == slot[counters.BATCHES_BEFORE]


class Guessing:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        if self.length < 0:
            raise TypeError
        return self.length

    def __iter__(self):
        return iter([[place] for place in range(8)])


@pytest.mark.parametrize("length", [-1, 0, 1, 5, 8, 9])
def test_a_length_that_is_only_a_guess_is_taken_back(slot, step, length):
    run(step, DataLoader(DATA, batch_sampler=Guessing(length)))
    assert [
        slot[place]
        for place in (counters.LOOPS, counters.LOOP_BATCHES, counters.FIRST_LOOP_BATCHES)
    ] == [1, 8, 8]
    assert slot[counters.BATCHES] == slot[counters.BATCHES_BEFORE]


def test_loaders_side_by_side_are_not_counted_for_sure(slot, step):
    for batch, _ in zip(
        DataLoader(DATA, batch_size=20), DataLoader(DATA, batch_size=10), strict=False
    ):
        step(batch)
    assert slot[counters.LOOPS] == 0
    loader, other = DataLoader(DATA, batch_size=10), iter(DataLoader(DATA, batch_size=10))
    for batch in loader:
        step(batch)
        next(other)
    assert [
        slot[place]
        for place in (counters.LOOPS, counters.LOOP_BATCHES, counters.FIRST_LOOP_BATCHES)
    ] == [1, -1, -1]


def test_asking_once_more_ends_a_loop_once(slot, step):
    iterator = iter(DataLoader(DATA, batch_size=50))
    for batch in iterator:
        step(batch)
    assert next(iterator, None) is None
    assert slot[counters.LOOPS] == 1


def test_data_is_told_only_in_a_group(slot, step, monkeypatch):
    run(step, DataLoader(DATA, batch_size=10))
    assert slot[counters.DATA_HASH] == 0
    monkeypatch.setattr(loops, "_in_group", lambda: True)
    run(step, DataLoader(DATA, batch_size=10))
    assert slot[counters.DATA_HASH] == 0  # the first training loop was another one


def test_data_of_the_first_training_loop_is_told(slot, step, monkeypatch):
    monkeypatch.setattr(loops, "_in_group", lambda: True)
    list(DataLoader(DATA, batch_size=10))
    run(step, DataLoader(DATA, batch_size=10))
    assert (slot[counters.DATA_INDICES], slot[counters.DATA_HASH] != 0) == (64, True)


def test_a_forked_child_writes_nothing(slot, step):
    loader = DataLoader(DATA, batch_size=10, sampler=shared())
    run(step, loader)
    child = os.fork()
    if child == 0:
        run(step, loader)
        os._exit(slot[counters.SAME_ORDER])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_samplers_stay_as_lazy_as_they_are(slot):
    drawn = []

    class Slow:
        def __len__(self):
            return 50

        def __iter__(self):
            for index in range(50):
                drawn.append(index)
                yield index

    iterator = iter(DataLoader(DATA, batch_size=2, sampler=Slow()))
    assert drawn == []
    next(iterator)
    assert drawn == [0, 1]


def test_an_iterator_is_freed_as_soon_as_it_was(slot, step):
    import weakref

    iterator = iter(DataLoader(DATA, batch_size=10))
    step(next(iterator))
    alive = weakref.ref(iterator)
    del iterator
    assert alive() is None


def test_after_the_end_torch_is_as_before():
    from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterators

    before = dict(Iterators.__dict__), torch.autograd.backward
    uninstall = probe.install(memoryview(bytearray(counters.SLOT_BYTES)).cast("q"))
    assert before != (dict(Iterators.__dict__), torch.autograd.backward)
    uninstall()
    assert before == (dict(Iterators.__dict__), torch.autograd.backward)


@pytest.mark.parametrize("length", [1, 6])
def test_batches_of_a_loader_that_was_left_before_the_training_are_not_counted(slot, step, length):
    """Lightning's sanity check takes two batches of the validation loader and leaves it."""
    held_out = iter(DataLoader(DATA, batch_size=10))
    for _ in range(2):
        next(held_out)
    del held_out
    for batch in DataLoader(
        TensorDataset(torch.arange(60.0).reshape(60, 1)[: 10 * length]), batch_size=10
    ):
        step(batch)
    assert slot[counters.LOOP_BATCHES] == length
    assert slot[counters.FIRST_LOOP_BATCHES] == length
    for batch in DataLoader(DATA, batch_size=10):
        step(batch)
        assert slot[counters.BATCHES] - slot[counters.BATCHES_BEFORE] >= 1
        break
    assert slot[counters.BATCHES] - slot[counters.BATCHES_BEFORE] == 1


def test_a_second_loader_beside_the_training_leaves_its_count_unsure(slot, step):
    beside = None
    for batch in DataLoader(DATA, batch_size=10):
        step(batch)
        beside = beside or iter(DataLoader(DATA, batch_size=5))
        step(next(beside))
    assert slot[counters.LOOP_BATCHES] == -1
