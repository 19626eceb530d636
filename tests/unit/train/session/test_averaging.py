"""What is said about an average."""

import pytest
import torch
from torch import nn

from paceline.train.session.averaging import average


@pytest.mark.parametrize(
    ("dtype", "decay", "is_warned"),
    [(torch.bfloat16, 0.999, True), (torch.bfloat16, 0.9, False), (torch.float32, 0.9999, False)],
)
def test_a_type_that_loses_the_updates_is_warned_about(dtype, decay, is_warned):
    model, lines = nn.Linear(2, 1, dtype=dtype), []
    average(model, decay, [torch.optim.SGD(model.parameters(), lr=0.1)], say=lines.append)
    assert ["usually lost" in line for line in lines] == [True] * is_warned
