"""Hashes of the samples of a batch: equal for equal samples, column by column."""

import pytest
import torch

from paceline.launch.probe.orders import row_hashes, whole_numbers

INPUTS = torch.arange(24.0).reshape(4, 2, 3)
LABELS = torch.tensor([0, 1, 0, 1])


def test_the_order_of_samples_does_not_change_their_hashes():
    first = row_hashes((INPUTS, LABELS), 4)
    second = row_hashes((INPUTS.flip(0), LABELS.flip(0)), 4)
    assert [column[::-1] for column in second] == first
    assert [len(set(column)) for column in first] == [4, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.uint8, torch.float64])
def test_every_dtype(dtype):
    (hashes,) = row_hashes(INPUTS.to(dtype), 4)
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("batch", "columns"),
    [
        ({"x": INPUTS, "text": ["a", "b", "c", "d"]}, 2),
        ((INPUTS, torch.zeros(3)), 1),
        ((INPUTS, [object()] * 4), 1),
        (torch.zeros(4, 0), 1),
        (object(), 0),
        (None, 0),
    ],
)
def test_what_is_no_column_is_left_out(batch, columns):
    assert len([hashes for hashes in row_hashes(batch, 4) if len(hashes) == 4]) == columns


def test_all_indices_of_a_large_batch():
    assert len(whole_numbers(list(range(200)))) == 64
    assert whole_numbers(list(range(200)), most=None) == list(range(200))
