"""Sums over rows and means over something else, told apart from means over rows by the graph of the loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from paceline.train.session.loss_weight import function_that_sums, other_than_rows

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
