"""Parameters of ranks: equal, drifted, other from the start, and apart on purpose."""

from __future__ import annotations

import pytest

from paceline.measure.verify import replicas
from verify_records import rank, shared, step, training, world


def beside(**values):
    """Two ranks, of which the second has these values."""
    return world(rank(trained=training()), rank(trained=training(**values)))


def from_step(first):
    return {number: (500 if number < first else 900) + number for number in range(8)}


OWN_GRADIENTS = [step(number, gradients=number) for number in range(1, 9)]
NO_GRADIENTS = [step(number, gradients=None) for number in range(1, 9)]


@pytest.mark.parametrize(
    ("recorded", "state", "words"),
    [
        (shared(), "kept", "8 steps"),
        (beside(checksums=from_step(3)), "broken", "after step 3 rank 1 has other parameters"),
        (beside(checksums=from_step(0)), "broken", "after step 0"),
        (
            beside(checksums=from_step(3), steps_made=OWN_GRADIENTS),
            "not judged",
            "ranks may train apart",
        ),
        (beside(checksums=from_step(0), steps_made=NO_GRADIENTS), "not judged", "train apart"),
        (beside(is_whole=False, checksums=from_step(3)), "not judged", "divided among ranks"),
        (beside(checksums={0: None}), "not judged", "no parameters"),
        (world(rank(), rank()), "not judged", "no optimizer step"),
    ],
)
def test_replicas(recorded, state, words):
    verdict = replicas.judge(recorded)
    assert (verdict.state, words in verdict.reason) == (state, True), verdict


def test_ranks_that_nothing_has_made_equal_have_another_initialisation():
    one = training(is_parallel=False)
    other = training(is_parallel=False, checksums=from_step(0))
    finding = replicas.judge(world(rank(trained=one), rank(trained=other))).finding
    assert finding.name == "initialisation-differs"
    assert finding.where == "train.py:24"


def test_a_parameter_is_named_where_its_checksum_is_known():
    sums = {number: (1 if number >= 3 else 500 + number,) for number in range(8)}
    finding = replicas.judge(beside(checksums=from_step(3), sums=sums)).finding
    assert "first in weight" in finding.what


def test_a_rank_that_skips_a_step_is_named_although_its_steps_are_counted_one_behind():
    skipped = [step(number, gradients=1000 + number + (number > 4)) for number in range(1, 9)]
    verdict = replicas.judge(beside(checksums=from_step(4), steps_made=skipped))
    assert verdict.finding.name == "replicas-differ"
