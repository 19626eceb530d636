"""What can be measured on a node, and what is refused."""

from dataclasses import replace

import pytest

from paceline.errors import UsageError
from paceline.measure.bench import request
from paceline.measure.bench.request import BenchRequest, Devices
from refusals import refusal

NODE = Devices(4, are_gpus=False)
WEAK = BenchRequest(("train.py", "--lr", "0.1"), (1, 2, 4))
STRONG = replace(WEAK, scaling="strong", batch_option="--batch-size={per_rank}")


def test_numbers_of_ranks_are_sorted_and_not_repeated():
    assert request.parse_worlds("4, 1,2,2") == (1, 2, 4)


@pytest.mark.parametrize("text", ["0", "two", "1,,2", "1 2", "-1", "1.5"])
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError, match="--world is numbers of ranks"):
        request.parse_worlds(text)


@pytest.mark.parametrize(
    ("count", "worlds"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))]
)
def test_powers_of_two_are_the_default(count, worlds):
    assert request.default_worlds(Devices(count, are_gpus=True)) == worlds


@pytest.mark.parametrize(
    "requested", [WEAK, STRONG, replace(WEAK, worlds=(8,), oversubscribe=True)]
)
def test_what_the_node_has_is_measured(requested):
    request.check(requested, NODE)


@pytest.mark.parametrize(
    ("requested", "name", "words"),
    [
        (replace(WEAK, worlds=(1, 8)), "world-larger-than-node", "this node has 4 CPUs"),
        (replace(WEAK, steps=5), "option-invalid", "--steps needs at least 12"),
        (replace(WEAK, batch_option="--b={per_rank}"), "option-contradicted", "weak scaling"),
        (replace(WEAK, global_batch=8), "option-contradicted", "--global-batch has no effect"),
        (replace(STRONG, batch_option=""), "option-invalid", "needs --batch-option"),
        (replace(STRONG, batch_option="--b 4"), "option-invalid", "with {per_rank}"),
        (replace(STRONG, global_batch=30), "option-invalid", "cannot be divided by 4 ranks"),
    ],
)
def test_what_cannot_be_measured_is_refused(requested, name, words):
    finding = refusal(UsageError, request.check, requested, NODE)
    assert finding.name == name
    assert words in finding.what


def test_a_smaller_bench_is_proposed():
    with pytest.raises(UsageError, match=r"fix: paceline bench --world 1,2 train\.py --lr 0\.1"):
        request.check(replace(WEAK, worlds=(1, 2, 16)), NODE)


def test_the_batch_of_a_rank_is_its_share_in_strong_scaling_only():
    assert STRONG.command_for(4, 64) == (*WEAK.command, "--batch-size=16")
    assert STRONG.command_for(4, None) == WEAK.command_for(4, 64) == WEAK.command
    spaced = replace(STRONG, batch_option="--batch-size {per_rank}")
    assert spaced.command_for(2, 64)[-2:] == ("--batch-size", "32")
