"""Dropout masks of ranks, from their inputs and digests."""

from dataclasses import replace

import pytest

from paceline.measure.verify import masks
from paceline.measure.verify.recorded_values import Period, RecordedCall
from verify_records import rank, world

CALLS = (RecordedCall("Net", "", "Net", True, "train.py:9", (), (), 0.0),)
SAME, OTHER = (32.0, 1.0, 9.0, 8.0, 1.0), (32.0, 2.0, 7.0, 6.0, 2.0)


def ranks(*drawn):
    """Ranks, each with the input of its model, and input and mask of a dropout."""
    periods = [
        Period(inputs={"Net": model}, calls=CALLS, masks=(("block.drop", sums, mask),))
        for model, sums, mask in drawn
    ]
    return replace(world(*(rank() for _ in drawn)), values=tuple({1: period} for period in periods))


@pytest.mark.parametrize(
    ("drawn", "state", "name"),
    [
        ([(SAME, SAME, "a"), (SAME, SAME, "a")], "kept", None),
        ([(SAME, SAME, "a"), (SAME, SAME, "b")], "broken", "dropout-other-mask"),
        ([(SAME, SAME, "a"), (SAME, OTHER, "a")], "broken", "dropout-same-mask"),
        ([(SAME, SAME, "a"), (SAME, OTHER, "b")], "kept", None),
        ([(SAME, SAME, "a"), (OTHER, OTHER, "b")], "kept", None),
        ([(SAME, SAME, "a"), (OTHER, OTHER, "a")], "note", "dropout-same-mask"),
    ],
)
def test_masks(drawn, state, name):
    verdict = masks.judge(ranks(*drawn))
    assert verdict.state == state
    assert (verdict.finding.name if verdict.finding else None) == name


def test_without_dropout_nothing_is_judged():
    assert masks.judge(world(rank(), rank())).state == "not judged"
