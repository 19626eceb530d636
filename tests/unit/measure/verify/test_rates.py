"""Learning rates: as on one rank by step or by sample, scaled, not scaled, and stepped too often."""

import math
from dataclasses import replace

import pytest

from paceline.measure.verify import rates
from verify_records import MIXED, epoch, rank, step, training, world

STEPS = 48


def cosine(number, total):
    return 0.1 * (1 + math.cos(math.pi * number / total)) / 2


def recorded(num_ranks, curve, *, batch=8, steps=STEPS, schedules=1, kind="CosineAnnealingLR"):
    """Ranks with batches of a size, whose rate is a function of the number of the step."""
    made = [step(number + 1, rate=curve(number), schedules=schedules) for number in range(steps)]
    ranks = [
        rank(
            [epoch(MIXED[number * batch : (number + 1) * batch], batch)],
            training(steps_made=made),
            schedule="train.py:25",
        )
        for number in range(num_ranks)
    ]
    for each in ranks:
        each.schedule_type = kind
    return world(*ranks)


ALONE = recorded(1, lambda number: cosine(number, STEPS))
CONSTANT = recorded(1, lambda number: 0.1)
HALF = STEPS // 2


@pytest.mark.parametrize(
    ("curve", "state"),
    [
        (lambda number: cosine(2 * number, STEPS), "note"),  # as many samples
        (lambda number: cosine(number, STEPS), "note"),  # as many steps
        (lambda number: 2 * cosine(2 * number, STEPS), "kept"),  # scaled with the batch
        (lambda number: cosine(4 * number, STEPS), "not judged"),
    ],
)
def test_schedules_of_several_ranks(curve, state):
    verdict = rates.judge(recorded(2, curve, steps=HALF), ALONE)
    assert verdict.state == state, verdict


def test_a_scheduler_that_is_stepped_twice_as_often_is_named():
    too_fast = recorded(2, lambda number: cosine(4 * number, STEPS), steps=HALF, schedules=2)
    finding = rates.judge(too_fast, ALONE).finding
    assert finding.name == "scheduler-stepped-n-times"
    assert finding.where == "train.py:25"


def test_accelerates_two_calls_for_a_schedule_of_one_process_are_right():
    twice = recorded(2, lambda number: 2 * cosine(2 * number, STEPS), steps=HALF, schedules=2)
    assert rates.judge(twice, ALONE).state == "kept"


@pytest.mark.parametrize(
    ("rate", "batch", "state"),
    [(0.1, 8, "note"), (0.2, 8, "kept"), (0.1, 4, "kept"), (0.2, 4, "not judged")],
)
def test_constant_rates(rate, batch, state):
    verdict = rates.judge(recorded(2, lambda number: rate, batch=batch), CONSTANT)
    assert verdict.state == state, verdict


def test_the_note_is_a_hint():
    finding = rates.judge(recorded(2, lambda number: 0.1), CONSTANT).finding
    assert (finding.name, finding.severity) == ("learning-rate-not-scaled", "hint")


@pytest.mark.parametrize("others", [world(rank(), rank()), world(rank([epoch(MIXED)]), rank())])
def test_what_is_unknown_is_not_judged(others):
    assert rates.judge(others, ALONE).state == "not judged"


def test_a_rate_of_zero_at_the_start_is_no_error():
    warm = lambda number: 0.1 * min(1.0, number / 10)  # noqa: E731
    assert rates.judge(recorded(2, warm), recorded(1, warm)).state in ("note", "not judged")


def per_epoch(num_ranks, curve, calls, kind="StepLR"):
    """A schedule that is called ``calls`` times after each epoch of 16 / num_ranks steps."""
    length = 16 // num_ranks
    alike = recorded(num_ranks, lambda number: curve(number // length), steps=3 * length, kind=kind)
    for each in alike.ranks:
        made = each.trainings[0].steps
        for place in range(length, len(made), length):
            made[place] = replace(made[place], schedules=calls)
        for place in set(range(len(made))) - set(range(length, len(made), length)):
            made[place] = replace(made[place], schedules=0)
    return alike


@pytest.mark.parametrize(
    ("base", "calls", "kind", "state"),
    [
        (0.5, 1, "StepLR", "note"),
        (0.25, 2, "StepLR", "broken"),
        (0.1, 1, "StepLR", "not judged"),
        (0.25, 2, "ReduceLROnPlateau", "not judged"),
    ],
)
def test_schedules_that_count_epochs(base, calls, kind, state):
    alone = per_epoch(1, lambda epoch: 0.5**epoch, 1, kind)
    verdict = rates.judge(per_epoch(2, lambda epoch: base**epoch, calls, kind), alone)
    assert verdict.state == state, verdict


def test_ranks_that_read_the_same_batch_may_take_parts_of_it():
    several = recorded(2, lambda number: 0.1)
    several.ranks[1].loops[0] = several.ranks[0].loops[0]
    assert rates.judge(several, CONSTANT).state == "not judged"


def test_ranks_that_share_batches_in_pairs_may_take_parts_of_them():
    several = recorded(4, lambda number: 0.1)
    for number in (1, 3):
        several.ranks[number].loops[0] = several.ranks[number - 1].loops[0]
    assert rates.judge(several, CONSTANT).state == "not judged"


@pytest.mark.parametrize(
    ("batch", "state", "words"), [(8, "not judged", "train apart"), (4, "kept", "as on 1 rank")]
)
def test_ranks_that_apply_gradients_of_their_own_have_no_larger_batch(batch, state, words):
    several = recorded(2, lambda number: 0.1, batch=batch)
    other = several.ranks[1].trainings[0]
    other.steps = [replace(each, gradients=each.number) for each in other.steps]
    verdict = rates.judge(several, CONSTANT)
    assert (verdict.state, words in verdict.reason) == (state, True), verdict


def test_an_optimizer_that_is_divided_among_ranks_is_judged():
    several = recorded(2, lambda number: 0.1)
    other = several.ranks[1].trainings[0]
    other.steps = [replace(each, gradients=each.number) for each in other.steps]
    other.names = ("bias",)
    assert rates.judge(several, CONSTANT).state == "note"


def accumulated(num_ranks, backwards, kind="SGD"):
    """Ranks whose steps each have a number of backwards."""
    several = recorded(num_ranks, lambda number: 0.1)
    for each in several.ranks:
        trained = each.trainings[0]
        trained.type = kind
        trained.steps[:] = [replace(made, losses=(1.0,) * backwards) for made in trained.steps]
    return several


@pytest.mark.parametrize(
    ("backwards", "kind", "state"), [(2, "SGD", "kept"), (4, "SGD", "note"), (2, "LBFGS", "note")]
)
def test_fewer_accumulated_batches_make_up_for_more_ranks(backwards, kind, state):
    verdict = rates.judge(accumulated(2, backwards, kind), accumulated(1, 4, kind))
    assert verdict.state == state, verdict
