"""Which steps a node collects, sends, and joins with those of other nodes."""

import itertools

import pytest

from paceline import counters
from paceline.launch.monitor import timed_steps
from paceline.launch.monitor.timed_steps import TimedSteps


def shared(num_ranks):
    board = counters.SharedCounters(counters.create(num_ranks), num_ranks)
    return board, [board.slot(local) for local in range(num_ranks)]


def write(slot, step, *, every=1):
    counters.write_stages(
        slot, number=step // every, step=step, durations=[step * 1000 + i for i in range(6)]
    )


def test_steps_that_all_ranks_have_timed_are_kept():
    board, (first, second) = shared(2)
    steps = TimedSteps(board, {0: 4, 1: 5})
    for step in (1, 2, 3):
        write(first, step)
    for step in (2, 3, 4):
        write(second, step)
    steps.look()
    assert sorted(steps.latest(10)) == [2, 3]
    assert steps.latest(1)[3] == dict.fromkeys((4, 5), (3000, 3001, 3002, 3003, 3004, 3005))


def test_a_ring_that_has_gone_round_holds_the_last_steps():
    board, (slot,) = shared(1)
    for step in range(4, 4 * 100 + 1, 4):
        write(slot, step, every=4)
    steps = board.read_stages(0)
    assert sorted(steps) == list(range(4 * 37, 401, 4))


def test_nodes_with_another_rhythm_choose_the_same_steps():
    one = timed_steps.choose(range(1, 1000), 64)
    other = timed_steps.choose([s for s in range(1, 1000) if counters.rarity(s) >= 2], 64)
    assert one == other
    assert len(one) == 64


@pytest.mark.parametrize("period", range(2, 40))
def test_no_period_of_the_script_meets_the_chosen_steps(period):
    """An evaluation after each epoch is part of a step, and would be part of all of them."""
    chosen = timed_steps.choose(range(1, 10_000), 512)
    met = sum(step % period == 0 for step in chosen)
    assert met == pytest.approx(512 / period, rel=0.5)


@pytest.mark.parametrize("level", range(11))
def test_steps_of_a_rarity_are_about_as_far_apart(level):
    steps = [step for step in range(20_000) if counters.rarity(step) >= level]
    distances = {after - before for before, after in itertools.pairwise(steps)}
    assert len(distances) <= 3
    assert max(distances) < 3 * 2**level


def test_what_is_sent_comes_back_and_is_joined():
    nodes = []
    for ranks in ((0, 1), (2, 3)):
        board, slots = shared(2)
        for slot in slots:
            for step in range(1, 40):
                write(slot, step)
        steps = TimedSteps(board, dict(enumerate(ranks)))
        steps.look()
        nodes.append(timed_steps.from_json(timed_steps.to_json(steps.to_send(4))))
    joined = timed_steps.join(nodes)
    assert len(joined) == 39
    assert sorted(joined[1]) == [0, 1, 2, 3]
    assert joined[39][3][:2] == (39000, 39000)  # to a microsecond


def test_a_long_run_keeps_a_bounded_number():
    board, (slot,) = shared(1)
    steps = TimedSteps(board, {0: 0})
    for step in range(1, 5000):
        write(slot, step)
        if step % 50 == 0:
            steps.look()
    assert len(steps.latest(10_000)) <= 2 * timed_steps.MOST + counters.STAGES_ENTRIES
