"""What session.draws returns: a function of the row's place and the call, on any ranks, and random."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.data import RowRandom
from paceline.errors import UsageError
from paceline.train.data import BatchTracker
from paceline.train.data.counter_random import counted_bits, mixed_numbers
from paceline.train.data.order import derive
from paceline.train.data.row_random import bits_on
from unit.train.data.test_modules import make

CPU = torch.device("cpu")
MASK = (1 << 64) - 1
LENGTH, BATCH = 23, 5


def mixed(number):
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31


def by_definition(position, call, count, *, seed=3, epoch=0):
    """A row's numbers of 64 bits, with Python's own integers."""
    key = derive("draws", seed, -1, epoch, call, "rows", 0)
    state = mixed(key + 0x9E3779B97F4A7C15 * (position + 1) & MASK)
    return [mixed(state + 0x9E3779B97F4A7C15 * number & MASK) for number in range(1, count + 1)]


def test_a_device_computes_the_same_bits():
    states = mixed_numbers(5, np.arange(40, dtype=np.uint64))
    for count in (1, 1000):
        found = bits_on(CPU, states, count).numpy().view(np.uint64)
        assert (found == np.concatenate(list(counted_bits(states, 1, count)))).all()


class OnARank:
    """A loader of a rank, and its random numbers."""

    def __init__(self, rank=0, world_size=1, *, length=LENGTH, seed=3, **options):
        tracker = BatchTracker()
        self.draws = RowRandom(tracker, seed=seed, rank=rank, device=CPU)
        self.loader = make(
            TensorDataset(torch.arange(length)),
            rank=rank,
            world_size=world_size,
            tracker=tracker,
            seed=seed,
            **{"batch_size": BATCH, "shuffle": True, **options},
        )

    def epoch(self, draw):
        """What a draw returns in each batch, this rank's own rows only."""
        return [draw(self.draws)[: self.loader.rows] for _ in self.loader]


def test_the_numbers_are_those_that_are_defined():
    alone = OnARank()
    (ids,) = next(iter(alone.loader))
    expected = [by_definition(position, 1, 2) for position in range(len(ids))]
    double = alone.draws.rand(2, dtype=torch.float64)
    assert double.tolist() == [[(bits >> 11) * 2.0**-53 for bits in row] for row in expected]
    single = [by_definition(position, 2, 1)[0] >> 40 for position in range(len(ids))]
    assert alone.draws.rand(dtype=torch.float32).tolist() == [bits * 2.0**-24 for bits in single]
    third = [by_definition(position, 3, 1)[0] >> 32 for position in range(len(ids))]
    assert alone.draws.randint(-3, 7).tolist() == [(bits * 10 >> 32) - 3 for bits in third]


DRAWS = {
    "rand": lambda draws: draws.rand((2, 3)),
    "randn": lambda draws: draws.randn(3, dtype=torch.float64),
    "randint": lambda draws: draws.randint(0, 1000),
    "bernoulli": lambda draws: draws.bernoulli(0.5, 8),
    "permutation": lambda draws: draws.permutation(),
    "second call": lambda draws: (draws.randn(), draws.randn())[1],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
def test_ranks_have_the_rows_of_one_rank(draw, world_size):
    alone = OnARank()
    first, second = alone.epoch(draw), alone.epoch(draw)
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    ranks = [OnARank(rank, world_size) for rank in range(world_size)]
    for expected in (first, second):
        shares = [one.epoch(draw) for one in ranks]
        assert all(len(one) == len(expected) for one in shares)
        for number, whole in enumerate(expected):
            assert torch.equal(torch.cat([share[number] for share in shares]), whole)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_resumed_loop_continues_the_numbers_in_batches_of_another_size(draw):
    whole = torch.cat(OnARank(batch_size=LENGTH).epoch(draw))
    resumed = OnARank(batch_size=4)
    resumed.loader.load_state_dict({"epoch": 0, "done": 10, "length": LENGTH})
    found = torch.cat(resumed.epoch(draw))
    if draw is not DRAWS["permutation"]:  # which is of a batch
        assert torch.equal(found, whole[10:])


def test_calls_seeds_and_loaders_have_numbers_of_their_own():
    alone, other = OnARank(), OnARank(seed=4)
    third = OnARank()
    third.loader.number = 1
    found = [
        value
        for one in (alone, other, third)
        for _ in zip(range(1), one.loader, strict=False)
        for _ in range(3)
        for value in one.draws.rand(dtype=torch.float64).tolist()
    ]
    assert len(set(found)) == 3 * 3 * BATCH


def test_a_loop_inside_another_has_its_own_rows_and_the_outer_one_continues():
    outer = OnARank()
    inner = make(TensorDataset(torch.arange(3)), batch_size=3, tracker=outer.draws._tracker)
    inner.number = 1
    for _ in outer.loader:
        before = outer.draws.rand()
        assert [len(outer.draws.rand()) for _ in inner] == [3]
        assert len(outer.draws.rand()) == len(before)
        break
    alone = OnARank()
    for _ in alone.loader:
        assert torch.equal(alone.draws.rand(), before)
        break


def test_a_permutation_is_one_of_the_global_batch():
    ranks = [OnARank(rank, 3).epoch(lambda draws: draws.permutation()) for rank in range(3)]
    for number, shares in enumerate(zip(*ranks, strict=True)):
        size = min(BATCH, LENGTH - number * BATCH)
        assert sorted(torch.cat(shares).tolist()) == list(range(size))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_type_is_the_one_that_was_asked_for_and_one_is_never_drawn(dtype):
    alone = OnARank(length=2000, batch_size=2000)
    next(iter(alone.loader))
    values = alone.draws.rand(50, dtype=dtype)
    assert values.dtype == alone.draws.randn(3, dtype=dtype).dtype == dtype
    assert values.shape == (2000, 50)
    assert 0 <= values.min() < 0.01
    assert 0.98 < values.max() < 1
    assert alone.draws.rand().dtype == torch.get_default_dtype()
    assert alone.draws.bernoulli(0.5).dtype == torch.bool
    assert alone.draws.rand(3, 0, 2).shape == (2000, 3, 0, 2)
    assert alone.draws.randn(0).shape == (2000, 0)


def test_the_numbers_have_their_distributions():
    alone = OnARank(length=1000, batch_size=1000)
    next(iter(alone.loader))
    uniform, normal = (
        alone.draws.rand(101, dtype=torch.float64),
        alone.draws.randn(101, dtype=torch.float64),
    )
    for values, mean, deviation in ((uniform, 0.5, 12**-0.5), (normal, 0.0, 1.0)):
        assert abs(values.mean() - mean) < 5 * deviation / values.numel() ** 0.5
        assert abs(values.std() - deviation) < 0.01
        neighbours = torch.corrcoef(torch.stack([values[:-1].flatten(), values[1:].flatten()]))
        columns = torch.corrcoef(values.T) - torch.eye(101, dtype=torch.float64)
        assert abs(neighbours[0, 1]) < 0.02
        assert columns.abs().max() < 0.17
    assert abs((normal.abs() > 2).double().mean() - 0.0455) < 0.004
    counts = torch.bincount(alone.draws.randint(0, 7, 100).flatten()).double()
    assert ((counts / counts.sum() - 1 / 7).abs() < 0.006).all()
    odds = torch.tensor([0.1, 0.5, 0.9])
    found = alone.draws.bernoulli(odds, 3, dtype=torch.float32).mean(0)
    assert (found - odds).abs().max() < 0.08


def test_the_global_generators_are_not_touched():
    alone = OnARank()
    before = torch.get_rng_state()
    for draw in DRAWS.values():
        alone.epoch(draw)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_has_no_rows_is_refused():
    alone = OnARank()
    for draw in (lambda draws: draws.rand(), lambda draws: draws.permutation()):
        with pytest.raises(UsageError, match="no loader has yielded a batch"):
            draw(alone.draws)
    next(iter(alone.loader))
    for low, high in ((3, 3), (0, 1 << 32)):
        with pytest.raises(UsageError, match="integers to choose from"):
            alone.draws.randint(low, high)
