"""Where the time of a step goes, and which rank the others wait for."""

import random

import pytest

from paceline.launch.monitor import stage_times
from paceline.launch.monitor.stage_times import LOCAL, STAGES

MS = 1_000_000
USUAL = {"optimizer": 4, "other": 1, "data": 8, "forward": 10, "backward": 16}
EXCHANGE = 3


def steps_of(num_ranks, *, late=None, num_steps=60, jitter=0.1, sync_in_forward=False, seed=0):
    """Steps of ranks that wait for each other at the end of backward.

    ``late`` is ``(rank, stage, milliseconds)`` that the stage takes longer on a rank, ``jitter``
    the standard deviation of each stage in milliseconds.
    """
    source = random.Random(seed)
    steps = []
    for _ in range(num_steps):
        ranks = {}
        for rank in range(num_ranks):
            ranks[rank] = {stage: USUAL[stage] + abs(source.gauss(0, jitter)) for stage in LOCAL}
        if late is not None:
            rank, stage, longer = late
            ranks[rank][stage] += longer
        if sync_in_forward:
            arrival = max(sum(list(d.values())[:3]) for d in ranks.values())
            for durations in ranks.values():
                durations["forward"] += arrival - sum(list(durations.values())[:3])
        release = max(sum(durations.values()) for durations in ranks.values()) + EXCHANGE
        steps.append(
            {
                rank: [
                    *(int(durations[stage] * MS) for stage in LOCAL),
                    int((release - sum(durations.values())) * MS),
                ]
                for rank, durations in ranks.items()
            }
        )
    return steps


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 16])
@pytest.mark.parametrize("stage", LOCAL)
def test_a_late_rank_is_named_with_its_stage(num_ranks, stage):
    late = num_ranks - 1, stage, 4.2
    account = stage_times.account(steps_of(num_ranks, late=late))
    assert (account.proven.rank, account.proven.stage) == late[:2]
    assert account.proven.seconds == pytest.approx(0.0042, rel=0.1)
    assert account.waiting == pytest.approx(0.0042, rel=0.15)
    assert max(account.waited_for, key=account.waited_for.get) == num_ranks - 1


def test_whom_ranks_wait_for_counts_the_long_steps_too():
    steps = steps_of(2, late=(0, "data", 1))
    for number in range(0, 60, 10):
        steps[number] = steps_of(2, late=(1, "other", 160), num_steps=1)[0]
    account = stage_times.account(steps)
    assert account.waiting == pytest.approx(0.001, rel=0.3)
    assert account.waited_for[1] > 0.9


def test_the_parts_add_up_to_the_step():
    account = stage_times.account(steps_of(4, late=(2, "data", 20), jitter=2))
    parts = sum(account.stages.values()) + account.exchange + account.waiting
    assert parts == pytest.approx(account.seconds, rel=1e-9)
    assert account.exchange == pytest.approx(EXCHANGE / 1000, rel=0.01)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("jitter", [0.1, 1, 8])
def test_nobody_is_named_among_equals(num_ranks, jitter):
    for seed in range(20):
        account = stage_times.account(steps_of(num_ranks, jitter=jitter, seed=seed))
        assert account.proven is None


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_that_waited_within_a_stage_are_not_accused(num_ranks):
    """Synchronised batch norm: the others wait in forward for the rank whose data came late."""
    steps = steps_of(num_ranks, late=(1, "data", 10), sync_in_forward=True)
    account = stage_times.account(steps)
    assert (account.proven.rank, account.proven.stage) == (1, "data")
    assert {suspect.stage for suspect in account.suspects if suspect.seconds > 0.002} == {"data"}


def a_rank_waits_in(steps, *, waiting, late, place):
    """Steps in which one rank ends a stage no sooner than a late rank does."""
    for step in steps:
        wait = sum(step[late][: place + 1]) - sum(step[waiting][: place + 1]) + MS // 10
        step[waiting][place] += wait
        step[waiting][-1] -= wait
    return steps


def test_a_rank_that_waited_for_a_late_one_is_not_accused():
    """Such as the other half of a pair in an all-reduce between the steps."""
    steps = steps_of(4, late=(3, "optimizer", 9.5))
    account = stage_times.account(a_rank_waits_in(steps, waiting=1, late=3, place=1))
    assert [(each.rank, each.stage) for each in account.suspects[:2]] == [
        (3, "optimizer"),
        (1, "other"),
    ]
    assert account.proven.rank == 3


def test_a_longer_delay_of_its_own_is_first():
    """Rank 1 cannot have waited for the little that rank 3 is late."""
    steps = steps_of(4, late=(1, "data", 9.5))
    for step in steps:
        step[3][0] += 4 * MS
        step[3][-1] -= 4 * MS
    account = stage_times.account(steps)
    assert (account.proven.rank, account.proven.stage) == (1, "data")


def test_an_evaluation_now_and_then_is_left_out():
    steps = steps_of(2)
    for step in steps[::10]:
        for durations in step.values():
            durations[STAGES.index("other")] += 900 * MS
    account = stage_times.account(steps)
    assert account.steps == 54
    assert account.stages["other"] < 0.002


def test_a_single_rank_waits_for_nobody():
    account = stage_times.account(steps_of(1))
    assert account.waiting == 0
    assert account.suspects == []


def test_ranks_that_exchange_nothing_wait_for_nobody():
    source = random.Random(0)
    steps = [
        {
            rank: [int((USUAL[stage] + source.random()) * MS) + rank * MS for stage in LOCAL] + [10]
            for rank in range(3)
        }
        for _ in range(30)
    ]
    account = stage_times.account(steps)
    assert account.waiting == 0
    assert account.proven is None


def test_few_steps_say_nothing():
    assert stage_times.account(steps_of(2, num_steps=stage_times.MIN_STEPS - 1)) is None
    assert stage_times.account([]) is None
