"""Whether ranks agree: fingerprints up to rounding, and the finding that names what differs first."""

import math

import pytest
import torch
from torch import nn

from paceline.machine import agreement
from paceline.machine.agreement import Parameters, last_line
from paceline.machine.fingerprints import TOTAL_LIMIT, fingerprints, total

NAMES = ("0.weight [4, 8]", "0.bias [4]", "1.weight [1, 4]")


def test_replicas_that_are_alike():
    assert agreement.replicas([Parameters((0, 1), NAMES, (1, 2, 3))], step=5) is None


@pytest.mark.parametrize(
    ("groups", "what", "evidence"),
    [
        (
            [Parameters((0, 2, 3), NAMES, (1, 2, 3)), Parameters((1,), NAMES, (1, 9, 9))],
            "after step 5 rank 1 has other parameters than ranks 0, 2-3, first in 0.bias",
            ("first: 0.bias [4]", "2 of 3 parameters differ"),
        ),
        (
            [Parameters((1,), NAMES, (1, 9, 3)), Parameters((0,), NAMES, (1, 2, 3))],
            "after step 5 rank 1 has other parameters than rank 0, first in 0.bias",
            ("first: 0.bias [4]", "1 of 3 parameters differ"),
        ),
        (
            [Parameters((0,), NAMES, (1, 2, 3)), Parameters((1,), NAMES[:2], (1, 2))],
            "after step 5 rank 1 has other parameters than rank 0, first in 1.weight",
            ("first: 1.weight [1, 4]",),
        ),
        (
            [Parameters((0,), NAMES, (1, 2, 3)), Parameters((1,), (), ())],
            "after step 5 rank 1 has other parameters than rank 0, first in 0.weight",
            ("first: 0.weight [4, 8]",),
        ),
        (
            [
                Parameters((0, 1), NAMES, (1, 2, 3)),
                Parameters((2,), NAMES, (1, 2, 4)),
                Parameters((3,), NAMES, (0, 2, 3)),
            ],
            "after step 5 ranks 2-3 have other parameters than ranks 0-1, first in 0.weight",
            ("first: 0.weight [4, 8]", "1 of 3 parameters differ"),
        ),
    ],
)
def test_replicas_that_differ(groups, what, evidence):
    found = agreement.replicas(groups, step=5)
    assert (found.name, found.severity, found.what, found.evidence) == (
        "replicas-differ",
        "warning",
        what,
        evidence,
    )


class Rank:
    """A rank's model and optimizer after a step."""

    def __init__(self, dtype=torch.float32, kind=torch.optim.AdamW, width=300):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2)).to(dtype)
        self.optimizer = kind(self.net.parameters(), lr=0.01)
        for parameter in self.net.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    def values(self, steps=1):
        return fingerprints(dict(self.net.named_parameters()), [self.optimizer], steps=steps)


def apart(one, other, *, steps=1):
    """What is found first, and whether the totals show that something is."""
    values = [rank.values(steps) for rank in (one, other)]
    totals = [total(each) for each in values]
    shows = max(abs(a - b) for a, b in zip(*totals, strict=True)) > TOTAL_LIMIT
    finding = agreement.compare(dict(enumerate(values)), step=steps)
    return (finding and finding.what.partition("first in ")[2]), shows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference_and_a_tenth_of_a_step_is_one(dtype):
    one, other = Rank(dtype), Rank(dtype)
    assert apart(one, other) == (None, False)
    with torch.no_grad():
        for parameter in other.net.parameters():  # each value rounded in another way
            noise = (torch.rand_like(parameter, dtype=torch.float64) - 0.5) * torch.finfo(dtype).eps
            parameter.copy_(parameter.double() * (1 + noise))
    assert apart(one, other) == (None, False)
    step = 0.1 if torch.finfo(dtype).eps > 1e-4 else 1e-3
    with torch.no_grad():
        other.net[1].weight.add_(torch.randn_like(other.net[1].weight) * step)
    assert apart(one, other) == ("1.weight", True)


def test_drift_by_rounding_grows_and_stays_no_difference():
    one, other = Rank(), Rank()
    with torch.no_grad():
        for _ in range(4096):
            noise = (torch.rand(2).double() - 0.5) * torch.finfo(torch.float32).eps
            other.net[1].bias.copy_(other.net[1].bias.double() * (1 + noise))
    assert apart(one, other, steps=4096) == (None, False)


def test_long_tensors_and_values_that_are_not_finite():
    one, other = Rank(width=700), Rank(width=700)  # 490,000 values are reduced by tiles
    assert apart(one, other) == (None, False)
    with torch.no_grad():
        one.net[0].weight[5, 7] = other.net[0].weight[5, 7] = math.nan
    assert apart(one, other) == (None, False)
    with torch.no_grad():
        other.net[0].weight[5, 7] = 0.0
    assert apart(one, other) == ("0.weight", True)


def test_a_setting_is_named_with_its_values():
    one, other = Rank(), Rank()
    other.optimizer.param_groups[0]["lr"] = 0.02
    other.optimizer.param_groups[0]["betas"] = (0.9, 0.99)
    finding = agreement.compare({0: one.values(), 1: other.values()}, step=8)
    assert finding.what == "after step 8 rank 1 has another lr of AdamW than rank 0"
    assert finding.evidence == (
        "lr of AdamW: 0.01 on rank 0, 0.02 on rank 1",
        "2 of 26 values differ",
    )
    assert "on all ranks alike" in finding.fix


def test_optimizer_state_is_compared_of_classes_of_torch_that_hold_no_others():
    class Own(torch.optim.SGD):
        """A subclass may keep its state on one rank only."""

    names = [value.name for value in Rank().values()]
    assert "exp_avg of 0.weight" in names
    assert [value.name for value in Rank(kind=Own).values()] == [
        *("0.weight", "0.bias", "1.weight", "1.bias")
    ]
    rank = Rank()
    rank.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert len(rank.values()) == 4
    rank = Rank()
    del rank.optimizer.param_groups[0]["params"][2:]  # as of a rank that keeps a part of the state
    assert len(rank.values()) == 4


def test_sparse_frozen_sharded_and_empty_parameters_are_left_out():
    shard = nn.Parameter(torch.ones(2))
    shard._local_tensor = torch.ones(1)
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    parameters = {"shard": shard, "frozen": frozen, "empty": nn.Parameter(torch.ones(0))}
    assert fingerprints(parameters, [], steps=1) == []


@pytest.mark.parametrize(
    ("checks", "differs", "is_proven", "line"),
    [
        (13, False, True, "same result: ranks agree (13 checks to step 4096) · LOSS · OTHER"),
        (1, False, None, "result: ranks agree (1 check to step 4096) · LOSS · OTHER"),
        (
            13,
            False,
            False,
            "not the same result: ranks agree (13 checks to step 4096) · LOSS · OTHER",
        ),
        (
            13,
            True,
            True,
            "not the same result: ranks differ (13 checks to step 4096) · LOSS · OTHER",
        ),
        (0, False, True, "result: LOSS · OTHER"),
    ],
)
def test_the_last_line(checks, differs, is_proven, line):
    known = {"loss": "LOSS", "is_proven": is_proven, "others": ["OTHER"]}
    assert last_line(checks=checks, step=4096, differs=differs, **known) == line
    other = last_line(checks=checks, step=4096, differs=differs, is_other_data=True, **known)
    assert other.startswith("not the same result: ")
