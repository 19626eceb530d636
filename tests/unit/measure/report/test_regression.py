"""Whether the second of two runs is slower, or learns worse: with confidence, or it is not known."""

import random

import pytest

from paceline.measure.report import regression
from paceline.measure.report.facts import AttemptFacts, ReportedRun, Series, SpeedPoint

RUNS = ("before", "after")


def run(step_s=0.1, *, noise=0.02, points=40, samples=64.0, losses=None, name="loss", seed=0):
    """A run whose launcher has described its speed every five seconds."""
    source = random.Random(seed)
    speed, steps = [], 0
    for number in range(points):
        speed.append(SpeedPoint(0, 100.0 + 5 * number, steps, samples_per_step=samples))
        steps += round(5 / (step_s * source.gauss(1, noise)))
    metrics = {name: Series(tuple(range(len(losses))), tuple(losses))} if losses else {}
    attempts = (AttemptFacts(0, 95.0, 100.0 + 5 * points),)
    return ReportedRun("run", "run", attempts=attempts, speed=tuple(speed), metrics=metrics)


def named(first, second, most=0.05, *, compare=regression.compare_speed):
    finding = regression.judge(compare(first, second), most, runs=RUNS)
    return finding.name if finding is not None else ""


@pytest.mark.parametrize(
    ("slower", "expected"), [(1.0, ""), (0.5, ""), (1.02, ""), (1.1, "run-regressed")]
)
def test_a_run_is_slower_if_the_whole_interval_is_beyond_the_limit(slower, expected):
    assert named(run(seed=1), run(0.1 * slower, seed=2)) == expected


def test_a_noisy_difference_at_the_limit_is_not_known():
    noisy = [run(0.1 * slower, noise=0.3, points=12, seed=5) for slower in (1.0, 1.05)]
    assert named(*noisy) == "comparison-undecided"


def test_twice_the_batch_in_one_and_a_half_times_the_time_is_no_regression():
    comparison = regression.compare_speed(run(0.1), run(0.15, samples=128.0))
    assert comparison.what == "the time of a sample"
    assert comparison.ratio.value == pytest.approx(0.75, rel=0.02)


def test_steps_are_compared_where_batches_are_unknown():
    comparison = regression.compare_speed(run(samples=0.0), run(0.2, samples=0.0))
    assert comparison.what == "the time of a step"
    assert comparison.ratio.value == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("short", [(run(points=5), run()), (run(), run(points=5))])
def test_a_short_run_is_not_known_to_be_slower(short):
    finding = regression.judge(regression.compare_speed(*short), 0.05, runs=RUNS)
    assert finding.name == "comparison-undecided"
    assert finding.evidence == ("a run has 4 intervals of 5 s in which it trained, of 6 needed",)
    assert finding.where == "before and after"


def curve(factor, *, steps=60, noise=0.05, seed=0):
    source = random.Random(seed)
    return [factor * (1 + source.gauss(0, noise)) * 2 / (1 + 0.1 * step) for step in range(steps)]


def test_losses_are_compared_at_equal_steps_of_the_second_half():
    before = run(losses=curve(1.0))
    for factor, expected in ((1.0, ""), (0.8, ""), (1.3, "run-regressed")):
        after = run(losses=curve(factor, seed=1, steps=50))
        assert named(before, after, compare=regression.compare_losses) == expected


@pytest.mark.parametrize(
    "after",
    [
        run(),
        run(losses=curve(1.0), name="accuracy"),
        run(losses=[-1.0] * 60),
        run(losses=curve(1.0, steps=8)),
    ],
)
def test_losses_that_cannot_be_compared_are_no_verdict(after):
    before = run(losses=curve(1.0))
    assert named(before, after, compare=regression.compare_losses) == "comparison-undecided"
