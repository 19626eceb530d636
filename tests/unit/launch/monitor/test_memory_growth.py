"""Whether a rank's memory grows from step to step, decided from made-up histories."""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest

from paceline.counters import Counters
from paceline.launch.monitor.memory_growth import (
    LEAST_POINTS,
    MemoryHistory,
    MemoryPoint,
    finding_of,
    growth,
    lasts,
)
from paceline.machine import processes

MIB = 1 << 20
NO_COUNT = {"phase": 1, "batches": 0, "seconds": 1.0, "data_s": 0.0, "own_s": 0.0}


def history(sizes_mib):
    return [MemoryPoint(10 * (place + 1), round(mib * MIB)) for place, mib in enumerate(sizes_mib)]


def noisy(sizes, deviation=20, seed=0):
    draw = random.Random(seed)
    return [size + draw.uniform(-deviation, deviation) for size in sizes]


@pytest.mark.parametrize("seed", range(10))
def test_steady_growth_is_found_with_its_rate(seed):
    points = history(noisy([2000 + 10 * place for place in range(100)], seed=seed))
    assert growth(points) == pytest.approx(MIB, rel=0.1)  # 10 MiB in 10 steps


def test_growth_within_each_epoch_and_over_all_is_found():
    sizes = [1000 + 20 * place + 80 * (place % 7 == 0) for place in range(80)]
    assert growth(history(sizes)) == pytest.approx(2 * MIB, rel=0.2)


@pytest.mark.parametrize(
    "sizes",
    [
        [2000] * 100,
        noisy([2000] * 100, 150),
        [2000 + 10 * place for place in range(LEAST_POINTS - 1)],  # too short
        [500 + 10 * min(place, 60) for place in range(100)],  # a cache that fills
        [500 + 60 * min(place, 20) for place in range(100)],
        [2000 + 1.5 * place for place in range(100)],  # a list of losses, or little beside the rest
        [2000 + 500 * (place // 25 % 2) for place in range(100)],  # an evaluation now and then
        [2000 - 10 * place for place in range(100)],
        [1000 + 400 * (place > 60) for place in range(100)],  # one more optimizer, once
        [1000 + 30 * (place % 20) for place in range(100)],  # what a collection frees
    ],
    ids=range(10),
)
def test_healthy_memory_is_not_accused(sizes):
    assert growth(history(sizes)) == 0


def test_no_noise_is_taken_for_growth():
    assert [seed for seed in range(300) if growth(history(noisy([1000] * 60, 400, seed))) > 0] == []


def test_a_long_history_keeps_few_points_of_the_whole():
    kept = MemoryHistory()
    kept.add(0, 10)
    kept.add(5, 0)
    assert kept.points == [] and kept.latest_bytes == 0
    for step in range(1, 5001):
        kept.add(step, step)
    assert kept.latest_bytes == 5000
    steps = [point.step for point in kept.points]
    assert len(steps) < 256 and steps[0] == 1 and steps[-1] > 4900
    assert len({later - earlier for earlier, later in pairwise(steps)}) == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # 600 of 1,000 batches are left, two batches a step: 300 MiB at a rate of 1 MiB
        ({"loop_length": 1000, "open_batches": 400, "batches": 400}, [False, True]),
        ({"loop_length": 1000, "open_batches": 400, "batches": 1400, "loops": 1}, [False, False]),
        ({"loop_length": -1, "open_batches": 400, "batches": 400}, [False, False]),
        ({"steps": 20}, [True, True]),
        ({}, [False, False]),  # 2,000 MiB in ten times 200 steps
    ],
)
def test_the_first_pass_over_the_data_may_fill_a_cache(values, expected):
    count = Counters(**{**NO_COUNT, "steps": 200, **values})
    assert [lasts(MIB, count, available * MIB) for available in (299, 301)] == expected


def test_the_rank_that_grows_most_is_named():
    common = {"host": "node-a", "memory_bytes": 3 << 30, "steps": 800}
    ranks = [{**common, "rank": rank, "memory_growth": rate} for rank, rate in enumerate((0, 5, 9))]
    assert finding_of(ranks[:1]) is None
    assert finding_of([{"rank": 0}]) is None  # of a version that did not write it
    found = finding_of(ranks)
    assert found.what == "the memory of rank 2 grows by 9 B a step"
    assert found.evidence == ("3 GiB allocated after 800 steps; 2 of 3 ranks grow",)
    ranks[1] |= {"gpu_memory_growth": 3 << 20, "gpu_memory_bytes": 5 << 30}
    on_gpu = finding_of(ranks)
    assert on_gpu.what == "the GPU memory of rank 1 grows by 3 MiB a step"
    assert on_gpu.evidence == ("5 GiB allocated after 800 steps; 1 of 3 ranks grow",)


def test_the_memory_of_a_process_is_what_it_allocated():
    before = processes.own_bytes(os.getpid())
    kept = b"x" * (64 * MIB)
    assert processes.own_bytes(os.getpid()) - before > 0.9 * len(kept)
    assert processes.own_bytes(1 << 30) == 0
