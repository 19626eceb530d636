"""The time of the slowest of N ranks, against distributions for which it is known."""

import random
import statistics

import pytest

from paceline.measure.forecast.fitting import Differences, spread


def uniform(count):
    """Evenly spaced values of the uniform distribution on (0, 1), less its mean."""
    return [(place + 0.5) / count - 0.5 for place in range(count)]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_maximum_of_uniform_values(world):
    differences = Differences(uniform(400), tail_factor=0.0)
    assert differences.excess_s(world) == pytest.approx(world / (world + 1) - 0.5, abs=0.003)


@pytest.mark.parametrize("world", [2, 8, 64, 1024])
def test_the_maximum_of_exponential_values_is_continued_beyond_the_sample(world):
    source = random.Random(1)
    sample = [source.expovariate(1.0) for _ in range(2000)]
    expected = sum(1 / number for number in range(1, world + 1)) - 1
    assert Differences(sample, tail_factor=1.0).excess_s(world) == pytest.approx(expected, rel=0.12)


def test_without_a_tail_nothing_exceeds_the_sample():
    differences = Differences(uniform(100), tail_factor=0.0)
    assert differences.excess_s(100_000) <= 0.5
    assert Differences(uniform(100), tail_factor=2.0).excess_s(100_000) > 0.5


def test_few_values_have_no_tail():
    assert Differences([0.0, 1.0, 2.0], tail_factor=1.0).excess_s(4096) <= 1.0


def rounds(own_s, *, num_rounds=6, steps=60, ranks=4):
    """Own work by round, step and rank, of a function of the random numbers and the rank."""
    source = random.Random(2)
    return [own_s(source, steps, ranks) for _ in range(num_rounds)]


def independent(source, steps, ranks):
    return [[source.gauss(1, 0.1) for _ in range(ranks)] for _ in range(steps)]


def in_common(source, steps, ranks):
    return [[source.gauss(1, 0.1)] * ranks for _ in range(steps)]


def half_in_common(source, steps, ranks):
    common = [source.gauss(0, 0.1) for _ in range(steps)]
    return [[1 + value + source.gauss(0, 0.1) for _ in range(ranks)] for value in common]


def with_slow_rounds(source, steps, ranks):
    slow = source.choice([0.0, 0.5])
    return [[slow + source.gauss(1, 0.1) for _ in range(ranks)] for _ in range(steps)]


@pytest.mark.parametrize(
    ("own_s", "shared", "deviation"),
    [
        (independent, 0.0, 0.1),
        (in_common, 1.0, 0.0),
        (half_in_common, 0.5, 0.1),
        (with_slow_rounds, 0.0, 0.1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_ranks_have_in_common_is_no_difference_between_them(own_s, shared, deviation):
    parts = spread(rounds(own_s))
    assert parts.shared == pytest.approx(shared, abs=0.1)
    measured = statistics.pstdev(parts.deviations_s(parts.shared))
    assert measured == pytest.approx(deviation, abs=0.012)


def test_a_rank_that_is_always_slower_is_persistent():
    def one_slow(source, steps, ranks):
        return [[source.gauss(1, 0.01) + 0.4 * (rank == 3) for rank in range(ranks)]] * steps

    parts = spread(rounds(one_slow))
    assert parts.persistent_s == pytest.approx((-0.1, -0.1, -0.1, 0.3), abs=0.01)
    # With many ranks one like it is nearly always among them.
    differences = Differences(parts.deviations_s(parts.shared), tail_factor=0.0)
    assert differences.excess_s(32) == pytest.approx(0.3, abs=0.03)


def test_short_rounds_do_not_make_the_spread_smaller():
    parts = spread(rounds(independent, num_rounds=80, steps=4))
    assert statistics.pstdev(parts.deviations_s(0.0)) == pytest.approx(0.1, abs=0.006)


def test_one_rank_has_nothing_in_common_with_others():
    parts = spread(rounds(independent, ranks=1))
    assert (parts.shared, parts.shared_error) == (0.0, 0.0)
