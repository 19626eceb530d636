"""Which batch sizes are tried, and which one is the knee."""

from dataclasses import replace

import pytest

from paceline.measure.intervals import Interval
from paceline.measure.tune import batches
from paceline.measure.tune.batches import BatchAnswer, BatchSize

GB = 10**9


def sizes(*rates, used_bytes=()):
    used = used_bytes or [GB] * len(rates)
    return [
        BatchSize(8 << place, 8 << place, Interval(rate, 0.95 * rate, 1.05 * rate), used[place])
        for place, rate in enumerate(rates)
    ]


@pytest.mark.parametrize(
    ("rates", "number", "reason"),
    [
        ((100,), 16, ""),
        ((100, 190), 32, ""),
        ((100, 190, 192), 64, ""),  # one doubling that gains nothing may be bad luck
        ((100, 190, 192, 194), 0, "not faster"),
        ((100, 190, 150, 120), 0, "not faster"),
        (tuple(100 * 2**n for n in range(10)), 0, "10 sizes"),
    ],
)
def test_sizes_are_doubled_until_that_gains_nothing(rates, number, reason):
    found = batches.next_size(sizes(*rates), free_bytes=100 * GB)
    assert found[0] == number
    assert reason in found[1]


@pytest.mark.parametrize(
    ("used_gb", "free_gb", "fits"),
    [
        ((1,), 4, True),
        ((3,), 8, False),  # nothing is known yet but that it may need twice as much
        ((3, 3.5), 8, True),  # most of it does not depend on the batch
        ((2, 3, 5), 14, False),  # 5 + 2 * (5 - 3)
        ((2, 3, 5), 16, True),
    ],
)
def test_memory_is_estimated_before_it_is_used(used_gb, free_gb, fits):
    rates = [100 * 1.5**place for place in range(len(used_gb))]
    measured = sizes(*rates, used_bytes=[round(GB * used) for used in used_gb])
    number, reason = batches.next_size(measured, free_bytes=free_gb * GB)
    assert (number > 0) is fits
    assert ("memory" in reason) is not fits


@pytest.mark.parametrize(
    ("rates", "expected"), [((100, 180, 195, 200), 32), ((100, 190, 191, 192), 16), ((100, 90), 8)]
)
def test_the_knee_is_the_smallest_that_is_about_as_fast(rates, expected):
    assert batches.knee(sizes(*rates)).option == expected


def test_the_answer_names_the_option_as_it_is_written():
    answer = BatchAnswer("--batch-size={batch}", sizes(100, 190, 192, 194), "64: the time was up")
    lines = answer.render().splitlines()
    assert "knee: --batch-size=16, the smallest within 5 % of the fastest" in lines
    assert "largest batch that was tried and fits: 64 (64: the time was up)" in lines
    assert next(line for line in lines if line.endswith("knee")).split()[0] == "16"
    assert max(map(len, lines)) <= 80


def test_on_gpus_their_memory_is_shown():
    on_gpu = [replace(size, gpu_bytes=12 * GB) for size in sizes(100, 190)]
    lines = BatchAnswer("--batch-size={batch}", on_gpu, "32: the time was up").render().splitlines()
    assert lines[1].endswith("11.2 GiB of GPU")
    assert max(map(len, lines)) <= 80
