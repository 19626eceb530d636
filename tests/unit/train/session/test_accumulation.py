"""How much a loss counts: the sum of what ranks do is the mean over all samples of the step."""

import itertools

import pytest

from paceline.train.data.share import EvenBatches, Rows, Shard
from paceline.train.session.loss_weight import StepGroup


def gradients(losses, parts, world_size):
    """What is left in a gradient after a group, whose loss has derivative ``losses``; averaged over ranks."""
    found = 0.0
    for loss, part in zip(losses, parts, strict=True):
        found = found * part.rescale + loss * part.factor
    return found / world_size


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("length", "batch_size", "world_size"), [(11, 4, 3), (9, 2, 4), (7, 3, 1), (12, 4, 2)]
)
def test_a_group_is_the_mean_over_its_samples(length, batch_size, world_size, accumulate, weighted):
    """The derivative of a sample's loss is its position, and its weight position + 1 if weighted."""
    shards = [
        Shard(EvenBatches(length, batch_size), rank, world_size, accumulate)
        for rank in range(world_size)
    ]
    weight = (lambda position: position + 1) if weighted else (lambda _: 1)
    number = shards[0].num_batches
    for first in range(0, number, accumulate):
        batches = range(first, min(first + accumulate, number))
        own = [
            sum(weight(p) for batch in batches for p in shard.positions(batch)) for shard in shards
        ]
        total = 0.0
        for shard in shards:
            group = StepGroup(world_size, accumulate, lambda _, own=own: sum(own))
            losses, parts = [], []
            for batch, rows in itertools.islice(enumerate(shard.rows()), first, batches.stop):
                positions = shard.positions(batch)
                mine = sum(map(weight, positions))
                losses.append(sum(p * weight(p) for p in positions) / mine if mine else 0.0)
                parts.append(group.add(rows, mine if weighted else None))
            assert [part.ends_group for part in parts] == [False] * (len(batches) - 1) + [True]
            assert group.num_batches == 0
            total += gradients(losses, parts, world_size)
        seen = [p for batch in batches for p in range(*batch_bounds(shards[0], batch))]
        assert total == pytest.approx(sum(p * weight(p) for p in seen) / sum(map(weight, seen)))


def batch_bounds(shard, batch):
    span = shard.batches.span(batch)
    return span.start, span.stop


def test_a_stream_knows_its_group_at_the_end_without_a_collective():
    group = StepGroup(2, 3, lambda _: pytest.fail("all ranks know the sizes of the batches"))
    rows = [Rows(2, 4, None, False), Rows(2, 4, None, False), Rows(1, 2, None, True)]
    parts = [group.add(each, None) for each in rows]
    assert gradients([1.0, 1.0, 1.0], parts, 2) == pytest.approx(5 / 10)


def test_without_a_loader_batches_count_alike():
    group = StepGroup(4, 3, sum)
    assert [tuple(group.add(None, None)) for _ in range(4)] == [
        (1 / 3, False, 1.0),
        (1 / 3, False, 1.0),
        (1 / 3, True, 1.0),
        (1 / 3, False, 1.0),
    ]


def test_even_shares_cost_nothing():
    assert StepGroup(2, 1, sum).add(Rows(2, 4, 4, True), None).factor == 1.0


def test_weights_of_zero_everywhere():
    group = StepGroup(2, 2, lambda _: 0.0)
    assert group.add(Rows(0, 4, 8, False), 0.0).factor == 0.0
    assert tuple(group.add(Rows(0, 4, 8, True), 0.0)) == (0.0, True, 0.0)


def test_all_ranks_divide_by_the_same_inside_a_group():
    """Their gradients may be averaged there, so that nobody could take a share of one rank's own out again."""
    groups = [StepGroup(2, 2, lambda _: 4.0) for _ in range(2)]
    parts = [
        group.add(Rows(1, 2, 4, False), weight)
        for group, weight in zip(groups, (1.0, 3.0), strict=True)
    ]
    assert [part.factor for part in parts] == [2 * 1 / 4, 2 * 3 / 4]


def test_large_weights_do_not_overflow_before_the_end():
    group = StepGroup(1, 3, lambda own: own)
    assert group.add(None, 1e9).factor == 1.0
    assert group.add(None, 2e9).factor == 2.0
    part = group.add(None, 1e9)
    assert (part.factor, part.rescale) == (0.25, 0.25)
