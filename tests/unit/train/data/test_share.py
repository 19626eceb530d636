"""Batches, groups and the shares of ranks, as functions."""

import itertools

import pytest

from paceline.train.data.share import EvenBatches, GivenBatches, Rows, Shard, in_order, share

LENGTHS = range(1, 18)
GRID = list(itertools.product(range(1, 5), range(1, 6)))  # world size, batch size


def shards(length, world_size, batch_size, **options):
    return [
        Shard(EvenBatches(length, batch_size), rank, world_size, **options)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize(
    ("num_rows", "world_size", "sizes"),
    [
        (8, 4, [2, 2, 2, 2]),
        (7, 4, [2, 2, 2, 1]),
        (5, 4, [2, 1, 1, 1]),
        (3, 4, [1, 1, 1, 0]),
        (0, 2, [0, 0]),
    ],
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
            assert sum(sizes) == len(ranks[0].batches.span(batch))
            assert max(sizes) - min(sizes) <= 1
            seen += itertools.chain(*shares)
        assert seen == list(range(length))


def test_batches_are_those_of_one_rank():
    """A step sees the same samples at any world size: ranks share out a batch, never the dataset."""
    alone = shards(17, 1, 5)[0]
    for world_size in (2, 3, 4):
        for batch in range(alone.num_batches):
            together = [p for shard in shards(17, world_size, 5) for p in shard.positions(batch)]
            assert together == list(alone.positions(batch))


@pytest.mark.parametrize(
    ("length", "num_batches"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_number_of_batches(length, num_batches):
    assert shards(length, 2, 4)[0].num_batches == num_batches


@pytest.mark.parametrize(("last", "sizes"), [("exact", [4, 4, 1]), ("drop", [4, 4])])
def test_the_last_batch(last, sizes):
    batches = EvenBatches(9, 4, last)
    assert [len(batches.span(number)) for number in range(len(batches))] == sizes


@pytest.mark.parametrize("batch_size", range(1, 7))
@pytest.mark.parametrize("start", range(18))
def test_an_epoch_continues_where_it_was_at_any_batch_size(start, batch_size):
    batches = EvenBatches(17, batch_size, start=start)
    left = [position for number in range(len(batches)) for position in batches.span(number)]
    assert left == list(range(start, 17))


def test_groups_of_batches():
    """Two groups of two batches, and a last group of one short batch."""
    first, second = shards(17, 2, 4, accumulate=2)
    assert list(first.rows()) == [
        Rows(2, 4, 8, False),
        Rows(2, 4, 8, True),
        Rows(2, 4, 8, False),
        Rows(2, 4, 8, True),
        Rows(1, 1, 1, True),
    ]
    assert [rows.of_rank for rows in second.rows()] == [2, 2, 2, 2, 0]


@pytest.mark.parametrize("accumulate", range(1, 6))
@pytest.mark.parametrize(("world_size", "batch_size"), GRID)
def test_groups_hold_every_sample_once(world_size, batch_size, accumulate):
    for length in LENGTHS:
        ranks = [
            list(each.rows())
            for each in shards(length, world_size, batch_size, accumulate=accumulate)
        ]
        ends = [rows.of_group for rows in ranks[0] if rows.ends_group]
        assert sum(ends) == length == sum(rows.of_rank for of_rank in ranks for rows in of_rank)
        assert len(ends) == -(-len(ranks[0]) // accumulate)
        assert ranks[0][-1].ends_group


def test_given_batches():
    batches = GivenBatches([0, 3, 3, 8])
    assert [batches.span(number) for number in range(len(batches))] == [
        range(3),
        range(3, 3),
        range(3, 8),
    ]


def test_rows_of_all_ranks_in_order():
    """Two ranks collected two batches: positions 0 1 | 4, and 2 3 | 5."""
    spans = [[range(2), range(4, 5)], [range(2, 4), range(5, 6)]]
    assert in_order(spans) == [0, 1, 3, 4, 2, 5]


@pytest.mark.parametrize(("world_size", "batch_size"), GRID)
def test_what_is_read_is_the_share_or_the_first_of_the_batch(world_size, batch_size):
    for length in LENGTHS:
        for shard in shards(length, world_size, batch_size):
            numbers = range(shard.num_batches)
            assert list(shard.read()) == [
                shard.positions(each) or shard.batches.span(each)[:1] for each in numbers
            ]


def test_what_is_read_of_given_batches():
    shard = Shard(GivenBatches([0, 3, 3, 8]), 1, 2)
    assert list(shard.read()) == [range(2, 3), range(3, 3), range(6, 8)]
