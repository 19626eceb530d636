"""How batches become seconds per batch."""

import pytest

from paceline.launch.probe.loader_commands import Delivery
from paceline.measure.tune import trial_run


def deliveries(times_s, number=1):
    return [Delivery(number, round(time * 1e9) - 1000, round(time * 1e9)) for time in times_s]


def test_bursts_of_workers_are_taken_as_rounds():
    """Four workers need 0.4 s for a batch: four come at once, then none for 0.4 s."""
    times = [
        round_number * 0.4 + worker * 0.001 for round_number in range(8) for worker in range(4)
    ]
    window = trial_run.measure({0: deliveries(times)}, 1, num_workers=4)
    assert window.seconds == pytest.approx([0.1] * 6)


def test_the_first_batches_are_left_out():
    """Workers read them while the loop waited for the first one."""
    times = [1.0, 1.001, 1.002, 1.2, 1.3, 1.4, 1.5, 1.6]
    window = trial_run.measure({0: deliveries(times)}, 1, num_workers=2)
    assert window.seconds == pytest.approx([0.1, 0.1])


def test_the_first_moment_is_left_out():
    slow_at_first = [0.0, 0.05, 0.1]
    steady = [0.15 + 0.001 * number for number in range(100)]
    window = trial_run.measure({0: deliveries([*slow_at_first, *steady])}, 1, num_workers=0)
    assert max(window.seconds) == pytest.approx(0.001)


def test_batches_of_other_commands_do_not_count():
    both = [*deliveries([0.0, 5.0, 9.0], number=1), *deliveries([10.0, 11.0, 12.0], number=2)]
    assert trial_run.measure({0: both}, 2, num_workers=0).seconds == pytest.approx([1.0])


def test_many_batches_are_summed_up():
    window = trial_run.measure({0: deliveries([n * 0.001 for n in range(2151)])}, 1, num_workers=0)
    assert len(window.seconds) == 16
    assert window.seconds == pytest.approx([0.001] * 16)


def test_a_window_is_as_long_as_that_of_the_rank_that_has_seen_least():
    ranks = {0: deliveries([0.0, 1.0, 2.0]), 1: deliveries([0.0, 1.5])}
    assert trial_run.measure(ranks, 1, num_workers=0).length_s == pytest.approx(1.35)
    assert trial_run.measure({0: [], 1: deliveries([0.0, 1.0])}, 1, num_workers=0).length_s <= 0


@pytest.mark.parametrize(
    ("step_s", "batches", "is_last", "enough"),
    [
        (0.5, 8, False, True),
        (0.01, 50, False, False),  # too short
        (2.0, 5, False, False),  # too few
        (2.0, 5, True, True),
        (2.0, 3, True, False),
    ],
)
def test_when_a_window_is_enough(step_s, batches, is_last, enough):
    times = [number * step_s for number in range(batches)]
    window = trial_run.measure({0: deliveries(times)}, 1, num_workers=0)
    assert trial_run.is_enough(window, 1, least_s=1.0, is_last=is_last) is enough
