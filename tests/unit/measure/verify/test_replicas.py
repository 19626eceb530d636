"""Parameters of ranks: equal, drifted, other from the start, and apart on purpose."""

import pytest

from paceline.measure.verify import replicas
from paceline.measure.verify.records import Rank, RecordedWorld
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


def alone(number, **values):
    """A rank that trains its own model: its steps are numbered from 1, its checksums are its own."""
    sums = {steps: 100 * number + steps for steps in range(8)}
    changed = values.pop("changed", {})
    steps = [
        step(
            n,
            **{"gradients": number + n, "after": sums.get(n), "exchanged": 0, **changed.get(n, {})},
        )
        for n in range(1, 9)
    ]
    known = {"is_parallel": False, "num_elements": 9, "num_connected": 2, "checksums": sums}
    return rank(trained=training(steps_made=steps, **{**known, **values}))


EQUAL_ONCE = {steps: 100 + steps + 100 * (steps != 4) for steps in range(8)}


@pytest.mark.parametrize(
    ("second", "is_found"),
    [
        ({}, True),
        ({"is_parallel": True}, True),
        ({"changed": {5: {"after": 7}}}, False),  # another rank has changed the parameters
        ({"changed": {4: {"exchanged": 12}}}, False),  # gradients or activations have met
        ({"changed": {3: {"rate": 0.2}}}, False),  # a search
        ({"num_connected": 0}, False),  # no process group, or memory that ranks share
        ({"num_elements": 8}, False),  # another model
        ({"names": ("bias",)}, False),
        ({"checksums": EQUAL_ONCE}, False),
    ],
)
def test_ranks_that_each_train_alone_are_named_if_nothing_of_theirs_has_met(second, is_found):
    verdict = replicas.judge(world(alone(1), alone(2, **second)))
    assert (verdict.finding is not None) == is_found, verdict
    if is_found:
        assert verdict.finding.name == "gradients-not-averaged"
        assert replicas.judge(RecordedWorld(2, (alone(1), alone(2)), is_apart=True)).finding is None


@pytest.mark.parametrize(("unstepped", "name"), [([5, 5, 5], "replicas-differ"), ([5, 6, 7], None)])
def test_a_rank_that_makes_no_step_is_named_if_its_parameters_stay(unstepped, name):
    verdict = replicas.judge(world(rank(trained=training()), Rank(unstepped=unstepped)))
    assert (verdict.finding and verdict.finding.name) == name


def test_after_one_rank_has_ended_its_epoch_steps_are_not_compared():
    same = {n: n for n in range(10)}
    waits = [step(n, loop=int(n > 5)) for n in range(1, 11)]
    goes_on = [step(n, loop=int(n > 8)) for n in range(1, 11)]
    first = rank(trained=training(checksums=same, steps_made=waits))
    second = rank(trained=training(checksums=from_step(0) | same | {7: 0}, steps_made=goes_on))
    assert replicas.judge(world(first, second)).reason == "compared before each of 5 steps"
