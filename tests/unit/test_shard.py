"""The order of an epoch and the shares of ranks, as functions."""

import itertools

import pytest
import torch

from paceline.data.shard import Shard, epoch_order, share

LENGTHS = range(1, 18)
GRID = list(itertools.product(range(1, 5), range(1, 6)))  # world size, batch size


def shards(length, world_size, batch_size):
    return [Shard(length, batch_size, rank, world_size) for rank in range(world_size)]


def test_order_is_a_permutation():
    assert sorted(epoch_order(101, seed=3, epoch=2).tolist()) == list(range(101))


def test_order_depends_on_seed_and_epoch_only():
    orders = {
        (seed, epoch): tuple(epoch_order(50, seed=seed, epoch=epoch).tolist())
        for seed in range(4)
        for epoch in range(4)
    }
    assert len(set(orders.values())) == 16, "seed + epoch, for one, would repeat orders along diagonals"
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


@pytest.mark.parametrize(
    ("num_rows", "world_size", "sizes"),
    [(8, 4, [2, 2, 2, 2]), (7, 4, [2, 2, 2, 1]), (5, 4, [2, 1, 1, 1]), (3, 4, [1, 1, 1, 0]), (0, 2, [0, 0])],
)
def test_shares(num_rows, world_size, sizes):
    shares = [share(num_rows, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [len(each) for each in shares] == sizes
    assert list(itertools.chain(*shares)) == list(range(num_rows))


@pytest.mark.parametrize(("world_size", "batch_size"), GRID)
def test_every_position_once_and_in_order(world_size, batch_size):
    for length in LENGTHS:
        ranks = shards(length, world_size, batch_size)
        seen = []
        for batch in range(ranks[0].num_batches):
            shares = [shard.positions(batch) for shard in ranks]
            sizes = [len(each) for each in shares]
            assert sum(sizes) == ranks[0].rows_of_batch(batch)
            assert max(sizes) - min(sizes) <= 1
            seen += itertools.chain(*shares)
        assert seen == list(range(length))


def test_batches_are_those_of_one_rank():
    """A step sees the same samples at any world size: ranks share out a batch, never the dataset."""
    alone = Shard(17, 5, 0, 1)
    for world_size in (2, 3, 4):
        for batch in range(alone.num_batches):
            together = [p for shard in shards(17, world_size, 5) for p in shard.positions(batch)]
            assert together == list(alone.positions(batch))


@pytest.mark.parametrize(("length", "num_batches"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_number_of_batches(length, num_batches):
    assert Shard(length, 4, 0, 2).num_batches == num_batches
