"""What the usual step leaves out: which steps are long, whose, in which stage, and how often."""

import random

import pytest

from paceline.launch.monitor import rare_delays, step_parts
from paceline.launch.monitor.stage_times import LOCAL

MS = 1_000_000
USUAL = {"optimizer": 4, "other": 1, "data": 8, "forward": 10, "backward": 16}
USUAL_MS = sum(USUAL.values()) + 3


def steps_of(num_ranks, longer, *, num_steps=150, timed=1.0, jitter=0.3, seed=0):
    """Steps of ranks that wait for each other at the end of backward, by number.

    ``longer(step, rank)`` is the stage that takes longer there and by how many milliseconds, or None; ``timed`` the
    share of steps that were timed.
    """
    source = random.Random(seed)
    steps = {}
    for number in range(1, num_steps + 1):
        ranks = {}
        for rank in range(num_ranks):
            ranks[rank] = {stage: USUAL[stage] + abs(source.gauss(0, jitter)) for stage in LOCAL}
            stage, milliseconds = longer(number, rank) or ("data", 0)
            ranks[rank][stage] += milliseconds
        release = max(sum(durations.values()) for durations in ranks.values()) + 3
        if source.random() < timed:
            steps[number] = {
                rank: [
                    *(int(durations[stage] * MS) for stage in LOCAL),
                    int((release - sum(durations.values())) * MS),
                ]
                for rank, durations in ranks.items()
            }
    return steps


def every(interval, rank, stage, milliseconds):
    """A delay of one rank every ``interval`` steps; of all ranks with rank None."""
    return lambda number, mine: (
        (stage, milliseconds) if number % interval == 0 and rank in (mine, None) else None
    )


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize("stage", LOCAL)
@pytest.mark.parametrize("timed", [1.0, 0.5])
def test_a_rank_that_takes_longer_every_ten_steps_is_named(num_ranks, stage, timed):
    steps = steps_of(num_ranks, every(10, num_ranks - 1, stage, 160), timed=timed)
    (delay,) = rare_delays.find(steps)
    assert (delay.rank, delay.stage, delay.every) == (num_ranks - 1, stage, 10)
    assert delay.seconds == pytest.approx(0.16, rel=0.02)
    # A fair share of the steps was timed, but not exactly one in ten of the long ones.
    assert delay.share == pytest.approx(16 / (16 + USUAL_MS), abs=0.01 if timed == 1.0 else 0.12)


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
def test_what_all_ranks_do_is_said_of_all(num_ranks):
    (delay,) = rare_delays.find(steps_of(num_ranks, every(25, None, "other", 400)))
    assert (delay.rank, delay.together, delay.stage, delay.every) == (None, True, "other", 25)


def test_storage_that_stalls_now_and_then_accuses_no_rank():
    source = random.Random(3)
    stalls = {(number, source.randrange(4)) for number in range(1, 151) if source.random() < 0.2}
    steps = steps_of(4, lambda number, rank: ("data", 100) if (number, rank) in stalls else None)
    delays = rare_delays.find(steps)
    assert {(delay.rank, delay.stage) for delay in delays} == {(None, "data")}
    assert not any(delay.together or delay.every for delay in delays)


def test_a_rank_that_pauses_in_many_steps_is_named_without_an_interval():
    pauses = set(random.Random(1).sample(range(1, 26), 8))
    steps = steps_of(
        2, lambda number, rank: ("forward", 90) if rank and number in pauses else None, num_steps=25
    )
    (delay,) = rare_delays.find(steps)
    assert (delay.rank, delay.stage, delay.every, delay.times) == (1, "forward", 0, 8)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 16])
def test_noise_and_a_slow_start_are_no_delays(num_ranks):
    for seed in range(10):
        for jitter in (0.3, 2, 10):
            assert not rare_delays.find(
                steps_of(
                    num_ranks,
                    lambda number, rank: ("forward", 300) if number <= 2 else None,
                    jitter=jitter,
                    seed=seed,
                )
            )


def test_ranks_that_do_not_wait_for_each_other_are_left_alone():
    steps = steps_of(2, every(10, 1, "data", 160))
    apart = {
        number: {rank: [*durations[:-1], 3 * MS] for rank, durations in step.items()}
        for number, step in steps.items()
    }
    assert not rare_delays.find(apart)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {},
            "every 10 steps rank 0 on a takes 160 ms longer: waiting for its DataLoader; 33% of the time",
        ),
        (
            {"every": 0},
            "in 15 of 150 timed steps rank 0 on a takes 160 ms longer: waiting for its DataLoader; 33% of",
        ),
        (
            {"rank": None, "together": True},
            "every 10 steps every rank takes 160 ms longer: waiting for the DataLoader",
        ),
        ({"rank": None}, "every 10 steps one rank or another takes 160 ms longer"),
    ],
)
def test_the_sentence_of_a_delay(changed, sentence):
    delay = {
        "rank": 0,
        "together": False,
        "stage": "data",
        "seconds": 0.16,
        "share": 0.33,
        "times": 15,
        "steps": 150,
    }
    assert step_parts.rare_delay({**delay, "every": 10, "host": "a", **changed}).startswith(
        sentence
    )
