"""How many steps at the start are left out."""

import random

import pytest

from paceline.measure.bench import rounds


def noisy(count, *, seed=0, share=0.05):
    source = random.Random(seed)
    return [source.gauss(1.0, share) for _ in range(count)]


@pytest.mark.parametrize("slow", [1, 3, 7, 12])
def test_slow_first_steps_are_left_out(slow):
    times = [5.0 - 3.0 * step / slow for step in range(slow)] + noisy(40)
    assert slow <= rounds.slow_steps(times) <= slow + 2


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_a_warmup(seed):
    assert rounds.slow_steps(noisy(40, seed=seed)) <= 1


def test_one_slow_step_later_is_not_a_warmup():
    times = noisy(40)
    times[10] = 20.0
    assert rounds.slow_steps(times) == 0


@pytest.mark.parametrize(
    "times", [[40.0 - step for step in range(40)], [*noisy(26), *(0.2 * t for t in noisy(14))]]
)
def test_at_most_half_is_left_out(times):
    assert rounds.slow_steps(times) == 20


def test_too_few_steps_have_no_warmup():
    assert rounds.slow_steps([9.0, 1.0, 1.0, 1.0]) == 0
