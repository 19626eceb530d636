"""What counts as the same result."""

import pytest
import torch

from paceline.testing.parity import require_close

NAN = float("nan")


def check(result, expected):
    require_close(result, expected, label="result", rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (1.0, 1.0 + 1e-7),
        ([1, 2.0, "a"], [1, 2.0, "a"]),
        ({"a": (1.0, None)}, {"a": (1.0, None)}),
        (torch.ones(3), torch.ones(3) + 1e-7),
        ([], []),
    ],
)
def test_what_agrees_passes(result, expected):
    check(result, expected)


@pytest.mark.parametrize(
    ("result", "expected", "part"),
    [
        (1.0, 1.1, "result: Scalars are not close"),
        (NAN, NAN, "result: Scalars are not close"),
        ([1.0], [1.0, 2.0], "a list of length 1 is not a list of length 2"),
        ([1.0], (1.0,), "a list of length 1 is not a tuple"),
        ({"a": 1}, {"b": 1}, "a dictionary with the keys"),
        ({"a": [1.0, 2.0]}, {"a": [1.0, 3.0]}, r"result\['a'\]\[1\]: Scalars"),
        ({"a": "x"}, {"a": "y"}, r"result\['a'\]: 'x' is not 'y'"),
        (torch.ones(3), torch.zeros(3), "result: Tensor-likes are not close"),
        (torch.ones(3), torch.ones(2), "result: The values for attribute 'shape' do not match"),
        (1.0, [1.0], "a value is not a list of length 1"),
    ],
)
def test_what_differs_is_named_with_its_place(result, expected, part):
    with pytest.raises(AssertionError, match=part):
        check(result, expected)
