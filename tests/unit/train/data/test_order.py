"""The order of the samples in an epoch: stored, and computed where it is asked for."""

import itertools

import pytest
import torch

from paceline.train.data.order import (
    BLOCK,
    COUNTED_FROM,
    CountedOrder,
    StoredOrder,
    blocks,
    derive,
    epoch_order,
    shuffled,
)


def test_order_is_a_permutation():
    assert sorted(epoch_order(101, seed=3, epoch=2).tolist()) == list(range(101))


def test_order_depends_on_seed_and_epoch_only():
    orders = {
        (seed, epoch): tuple(epoch_order(50, seed=seed, epoch=epoch).tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(set(orders.values())) == 16, (
        "seed + epoch, for one, would repeat orders along diagonals"
    )
    for (seed, epoch), order in orders.items():
        assert tuple(epoch_order(50, seed=seed, epoch=epoch).tolist()) == order


def test_order_is_the_same_in_every_process():
    # A stable hash: Python's own would change with PYTHONHASHSEED, and resuming would repeat samples.
    assert epoch_order(10, seed=0, epoch=0).tolist() == [8, 2, 7, 9, 5, 4, 3, 1, 6, 0]


def test_order_leaves_torchs_random_state_alone():
    before = torch.get_rng_state()
    epoch_order(10, seed=0, epoch=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_order_of_nothing_is_empty():
    assert epoch_order(0, seed=0, epoch=0).tolist() == []


# Computed


def whole(length, **options):
    (order,) = CountedOrder(length, **options).take([range(length)])
    return order


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 17, 64, 65, 1000, 4097])
def test_a_computed_order_is_a_permutation(length):
    assert sorted(whole(length, seed=3, epoch=2)) == list(range(length))


def test_a_computed_order_depends_on_seed_and_epoch():
    orders = {tuple(whole(100, seed=seed, epoch=epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_a_computed_order_is_the_same_in_every_process():
    order = CountedOrder(10**9, seed=0, epoch=0)
    assert list(order.take([range(3), range(10**9 - 1, 10**9)])) == [
        [625988305, 511630208, 735869530],
        [557766911],
    ]


def test_a_computed_order_looks_random():
    """No pattern between neighbours, and every region of positions meets every region of samples alike."""
    length, parts = 1 << 16, 16
    for seed in range(5):
        order = torch.tensor(whole(length, seed=seed, epoch=0), dtype=torch.float64)
        position = torch.arange(length, dtype=torch.float64)
        for lag in (1, 2, 64):
            together = torch.corrcoef(torch.stack([order[:-lag], order[lag:]]))[0, 1]
            assert abs(together) < 5 / length**0.5
        assert abs(torch.corrcoef(torch.stack([order, position]))[0, 1]) < 5 / length**0.5
        cells = (position * parts // length) * parts + order * parts // length
        counts = torch.bincount(cells.long(), minlength=parts**2).double()
        expected = length / parts**2
        chi2 = ((counts - expected) ** 2 / expected).sum()
        # The mean of this chi2 is (parts - 1)^2 = 225, its deviation about 21.
        assert 225 - 6 * 21 < chi2 < 225 + 6 * 21


def test_orders_beyond_32_bits():
    length = 3 * 2**40
    (samples,) = CountedOrder(length, seed=0, epoch=0).take([range(length - 1000, length)])
    assert len(set(samples)) == 1000
    assert 0 <= min(samples) < length / 50 < length * 49 / 50 < max(samples) < length


def test_long_orders_are_computed():
    assert isinstance(shuffled(COUNTED_FROM, seed=0, epoch=0), CountedOrder)
    assert isinstance(shuffled(COUNTED_FROM - 1, seed=0, epoch=0), StoredOrder)


@pytest.mark.parametrize(
    "order", [StoredOrder(range(100_000)), CountedOrder(100_000, seed=1, epoch=1)]
)
def test_blocks_are_what_the_order_has_there(order):
    (expected,) = order.take([range(100_000)])
    spans = [range(start, min(start + 7, 100_000)) for start in range(0, 100_000, 7)]
    found = list(blocks(order, iter(spans)))
    assert [len(each) for each in found] == [len(span) for span in spans]
    assert list(itertools.chain(*found)) == expected


def test_a_span_may_be_longer_than_a_block():
    assert list(blocks(StoredOrder(range(3 * BLOCK)), iter([range(2 * BLOCK)]))) == [
        list(range(2 * BLOCK))
    ]


def test_seeds_fit_where_they_go():
    assert {derive("a", number) >> 64 for number in range(100)} == {0}
    assert derive("a", 1, 2) != derive("a", 12)
