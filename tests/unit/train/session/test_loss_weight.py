"""How much a loss counts: ranks together take the mean over all samples, and a sum over rows is refused."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from paceline.train.data.share import EvenBatches, Rows, Shard
from paceline.train.session.loss_weight import StepGroup, function_that_sums, other_than_rows


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


NUM_ROWS = 5
LAYER = nn.Linear(4, NUM_ROWS)  # as many weights as rows: a penalty on them has the shape of a loss
X, Y, LABELS = torch.randn(NUM_ROWS, 4), torch.rand(NUM_ROWS, NUM_ROWS), torch.arange(NUM_ROWS)

SUMS = [
    lambda out: functional.cross_entropy(out, LABELS, reduction="sum"),
    lambda out: functional.cross_entropy(out, LABELS, reduction="none").sum(),
    lambda out: functional.mse_loss(out, Y, reduction="sum"),
    lambda out: functional.huber_loss(out, Y, reduction="sum"),
    lambda out: functional.l1_loss(out, Y, reduction="sum"),
    lambda out: functional.binary_cross_entropy_with_logits(out, Y, reduction="sum"),
    lambda out: functional.binary_cross_entropy(out.sigmoid(), Y, reduction="sum").double(),
    lambda out: (out - Y).square().sum(),
    lambda out: ((out - Y) ** 2).sum() + out.mean(),
    lambda out: functional.mse_loss(out, Y, reduction="sum").reshape(1),
]
OTHERS = [
    lambda out: functional.cross_entropy(out, LABELS),
    lambda out: functional.mse_loss(out, Y, reduction="sum") / len(out),
    lambda out: functional.mse_loss(out, Y, reduction="sum") * 0.2,
    lambda out: functional.kl_div(out.log_softmax(1), Y, reduction="batchmean"),
    lambda out: (out - Y).square().mean(0).sum(),
    lambda out: (out - Y).square().sum(1).mean(),
    lambda out: (functional.mse_loss(out, Y, reduction="none") / out.numel()).sum(),
    lambda out: functional.mse_loss(out, Y) + 1e-3 * LAYER.weight.square().sum(),
    lambda out: functional.mse_loss(out, Y) + LAYER.weight.square().sum(),
    lambda out: (
        functional.mse_loss(out, Y) + functional.mse_loss(LAYER.weight, 0 * X, reduction="sum")
    ),
    lambda out: functional.mse_loss(out, Y) + (LAYER.weight - 0 * X).square().sum(),
    lambda out: functional.mse_loss(out, Y) + (out.mean(0, keepdim=True) - 1).square().sum(),
    lambda out: torch.zeros(()),
]


@pytest.mark.parametrize("number", range(len(SUMS)))
def test_a_sum_over_rows_is_proven(number):
    assert function_that_sums(SUMS[number](LAYER(X)), NUM_ROWS)


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_is_not_proven_is_left_alone(number):
    assert function_that_sums(OTHERS[number](LAYER(X)), NUM_ROWS) == ""


def test_the_graph_is_still_there():
    loss = functional.mse_loss(LAYER(X), Y, reduction="sum")
    assert function_that_sums(loss, NUM_ROWS) == 'mse_loss(..., reduction="sum")'
    loss.backward()


CLASS_WEIGHTS = torch.linspace(0.5, 2, NUM_ROWS)
TOKENS = torch.arange(2 * NUM_ROWS) % NUM_ROWS  # two a row
PADDED = TOKENS.masked_fill(TOKENS == 3, 0).index_fill(
    0, torch.tensor([1]), 3
)  # one row has a label less
NOT_OVER_ROWS = [
    lambda out: functional.cross_entropy(out, LABELS, weight=CLASS_WEIGHTS),
    lambda out: (
        functional.mse_loss(out, Y) + functional.cross_entropy(out, LABELS, weight=CLASS_WEIGHTS)
    ),
    lambda out: functional.cross_entropy(out.repeat(2, 1), PADDED, ignore_index=3),
    lambda out: functional.cross_entropy(out, LABELS, ignore_index=0),
]
OVER_ROWS = [
    lambda out: functional.cross_entropy(out, LABELS),
    lambda out: functional.cross_entropy(out, LABELS, weight=torch.full((NUM_ROWS,), 2.0)),
    lambda out: functional.cross_entropy(
        out, LABELS, weight=CLASS_WEIGHTS, reduction="none"
    ).mean(),
    lambda out: functional.cross_entropy(
        out.repeat(2, 1), torch.tensor([0, 3] * NUM_ROWS), ignore_index=3
    ),
    lambda out: functional.cross_entropy(
        out.repeat(2, 1), TOKENS.clamp(max=2).add(1), ignore_index=0
    ),
    lambda out: functional.cross_entropy(out.repeat(2, 1)[:7], TOKENS[:7], ignore_index=3),
    lambda out: functional.mse_loss(out, Y),
]


@pytest.mark.parametrize("number", range(len(NOT_OVER_ROWS)))
def test_a_mean_over_something_else_than_rows_is_seen(number):
    assert other_than_rows(NOT_OVER_ROWS[number](LAYER(X)), NUM_ROWS).startswith("cross_entropy")


@pytest.mark.parametrize("number", range(len(OVER_ROWS)))
def test_a_mean_over_rows_is_left_alone(number):
    assert other_than_rows(OVER_ROWS[number](LAYER(X)), NUM_ROWS) == ""
