"""Speed-up, efficiency and the parts of a step; and what is said to hold scaling back."""

import random
import re
from dataclasses import replace

import pytest

from paceline.measure import bench_file
from paceline.measure.bench import brake, table
from paceline.measure.bench.table import BenchResult
from paceline.measure.bench_file import BenchFile, WorldBench

MS = 1_000_000
BASE = {"optimizer": 1.0, "other": 0.5, "data": 0.5, "forward": 6.0, "backward": 12.0}


def rank_step(source, *, exchange_ms, **stages):
    """The durations of one rank in one step, with 1 % of noise."""
    times = [{**BASE, **stages}[name] for name in BASE] + [exchange_ms]
    return tuple(round(time * source.gauss(1.0, 0.01) * MS) for time in times)


def world(num_ranks, *, exchange_ms=0.0, samples=None, slow=None, rounds=3, **stages):
    """Steps whose ranks leave the exchange together; ``slow``: rank, stage and milliseconds."""
    source = random.Random(num_ranks)
    measured = []
    for _ in range(rounds):
        steps = {}
        for step in range(10, 42):
            ranks = {}
            for rank in range(num_ranks):
                own = dict(stages)
                if slow and slow[0] == rank:
                    own[slow[1]] = {**BASE, **stages}[slow[1]] + slow[2]
                ranks[rank] = rank_step(source, exchange_ms=0.0, **own)
            end = max(map(sum, ranks.values())) + round(exchange_ms * MS)
            steps[step] = {
                rank: (*times[:-1], end - sum(times[:-1])) for rank, times in ranks.items()
            }
        measured.append(steps)
    hosts = dict.fromkeys(range(num_ranks), "node-a")
    return WorldBench(1, 32 * num_ranks if samples is None else samples, hosts, measured)


def bench(worlds, *, is_weak=True, gradient_bytes=100_000_000):
    kind = "weak" if is_weak else "strong"
    return BenchFile(("train.py",), kind, "gloo", 10, worlds, gradient_bytes)


def judged(content):
    figures = bench_file.figures(content)
    return brake.judge(
        figures,
        is_weak=content.scaling == "weak",
        script="train.py",
        gradient_bytes=content.gradient_bytes,
    )


def test_ranks_that_cost_nothing_are_ideal():
    one, two = bench_file.figures(bench({1: world(1), 2: world(2)}))
    assert one.efficiency.value == one.speedup.value == 1.0
    assert one.samples_per_s.value == pytest.approx(32 / 0.020, rel=0.01)
    assert two.speedup.value == pytest.approx(2.0, rel=0.02)
    assert two.efficiency.low <= two.efficiency.value <= two.efficiency.high
    assert judged(bench({1: world(1), 2: world(2)})).name == brake.NONE


def test_exposed_communication_lowers_the_efficiency_by_its_share():
    content = bench({1: world(1), 4: world(4, exchange_ms=20.0)})
    four = bench_file.figures(content)[1]
    assert four.speedup.value == pytest.approx(2.0, rel=0.03)
    assert four.efficiency.value == pytest.approx(0.5, rel=0.03)
    assert four.parts["communication"] == pytest.approx(0.020, rel=0.03)
    assert sum(four.parts.values()) == pytest.approx(four.step_s.value, rel=0.03)


def test_in_strong_scaling_the_batch_of_all_ranks_counts():
    half = {"forward": 3.0, "backward": 6.0, "optimizer": 0.5, "other": 0.25, "data": 0.25}
    content = bench({1: world(1), 2: world(2, samples=32, **half)}, is_weak=False)
    assert bench_file.figures(content)[1].speedup.value == pytest.approx(2.0, rel=0.02)
    assert judged(content).name == brake.NONE


def test_an_unknown_batch_counts_ranks():
    content = bench({1: world(1, samples=0), 2: world(2, samples=0)})
    one, two = bench_file.figures(content)
    assert one.samples_per_s is None
    assert two.speedup.value == pytest.approx(2.0, rel=0.02)


def test_bursts_of_batches_count_whole():
    steps = {step: {0: (0, 0, (40 if step % 4 == 0 else 0) * MS, MS, MS, 0)} for step in range(32)}
    one = WorldBench(1, 8, {0: "node-a"}, [steps, steps])
    assert bench_file.figures(bench({1: one}))[0].step_s.value == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("largest", "options", "name", "words"),
    [
        ({"exchange_ms": 10.0}, {}, brake.COMMUNICATION, "exchanging gradients of 100 MB"),
        ({"forward": 9.0, "backward": 18.0}, {}, brake.COMPUTE, "for the same batch"),
        ({"data": 10.0}, {}, brake.DATA, "and 0.5 ms on 1 rank: ranks share CPUs and disks"),
        ({"other": 9.0}, {}, brake.OTHER, "own code between steps"),
        ({"slow": (2, "forward", 10.0)}, {}, brake.SLOW_RANK, "waiting for rank 2 (node-a)"),
        (
            {"exchange_ms": 30.0},
            {"gradient_bytes": 10_000},
            brake.BATCH,
            "too little work in a step",
        ),
        ({"samples": 32}, {"is_weak": False}, brake.BATCH, "too small a batch"),
    ],
)
def test_the_brake_is_the_part_that_has_grown_most(largest, options, name, words):
    content = bench({1: world(1), 4: world(4, **largest)}, **options)
    assert judged(content).name == name
    assert words in judged(content).sentence


def test_tiny_steps_that_wait_for_a_rank_that_logs_are_not_blamed_on_the_batch():
    tiny = {"optimizer": 0.05, "other": 0.05, "data": 0.05, "forward": 0.2, "backward": 0.4}
    slow = world(4, exchange_ms=1.0, slow=(0, "other", 10.0), **tiny)
    found = judged(bench({1: world(1, **tiny), 4: slow}, gradient_bytes=10_000))
    assert found.name == brake.SLOW_RANK
    assert "waiting for rank 0 (node-a), which takes 10" in found.sentence


def test_waiting_for_data_is_named_although_it_scales():
    content = bench({1: world(1, data=50.0), 2: world(2, data=50.0)})
    assert judged(content).name == brake.DATA
    assert "72%" in judged(content).sentence or "71%" in judged(content).sentence
    assert judged(content).advice == "paceline tune train.py"


@pytest.mark.parametrize(("data_ms", "advice"), [(0.9, ""), (10.0, "paceline tune train.py")])
def test_tuning_is_advised_where_it_has_something_to_gain(data_ms, advice):
    content = bench({1: world(1, data=0.0), 4: world(4, data=data_ms)})
    assert judged(content).name == brake.DATA
    assert judged(content).advice == advice


def test_data_that_cost_more_than_scaling_are_named_first():
    content = bench({1: world(1, data=30.0), 2: world(2, data=30.0, exchange_ms=5.0)})
    assert bench_file.figures(content)[1].efficiency.high < brake.IDEAL
    assert judged(content).name == brake.DATA


def test_one_number_of_ranks_says_nothing_about_scaling():
    assert judged(bench({2: world(2)})).name == brake.NONE


@pytest.mark.parametrize(
    ("largest", "options", "name"),
    [
        ({"data": 50.0}, {}, "data-bound"),
        ({"exchange_ms": 30.0}, {}, "communication-bound"),
        ({"exchange_ms": 30.0}, {"gradient_bytes": 10_000}, "communication-bound"),
        ({"data": 10.0}, {}, ""),  # a brake, and shorter than computing
        ({"exchange_ms": 10.0}, {}, ""),
        ({"slow": (2, "forward", 50.0)}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_brake_that_takes_longer_than_computing_is_a_finding(largest, options, name):
    found = judged(bench({1: world(1), 4: world(4, **largest)}, **options))
    assert found.finding == name
    assert bool(found.code) == bool(name)


def printed(content):
    figures = bench_file.figures(content)
    return table.render(BenchResult(content, figures, judged(content), [], 40, None, True, "x"))


def test_a_bench_without_a_number_of_samples_says_what_the_speedup_is():
    content = bench({1: world(1, samples=0), 2: world(2, samples=0)})
    text = " ".join(printed(content).split())
    assert "batch unknown" in text
    assert "samples/s are unknown, because the batches do not come from a DataLoader" in text
    assert max(map(len, printed(content).splitlines())) <= 80


def test_a_finding_is_printed_with_the_command_that_explains_it():
    content = bench({1: world(1), 4: world(4, exchange_ms=30.0)})
    lines = printed(content).splitlines()
    assert "[RUN050 communication-bound]" in " ".join(lines)
    assert "more: paceline explain RUN050" in lines
    assert max(map(len, lines)) <= 80


def test_rates_are_printed_without_an_exponent():
    content = bench({1: world(1, samples=50_000), 2: world(2, samples=100_000)})
    lines = printed(content).splitlines()
    assert "e+" not in "".join(lines)
    assert any(re.match(r"    1  2,\d{3},000 \(2,\d{3},000-2,\d{3},000\)", line) for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_single_window_of_steps_has_no_interval():
    few = {size: one_window(world(size, rounds=1)) for size in (1, 2)}
    figures = bench_file.figures(bench(few))
    assert [row.windows for row in figures] == [1, 1]
    text = " ".join(printed(bench(few)).split())
    assert "no intervals: they need more than 8 steps after the warm-up" in text
    assert "%)" not in text.partition("ranks data")[0].replace("(95 %)", "")
    many = {size: world(size) for size in (1, 2)}
    assert "no intervals" not in printed(bench(many))


def one_window(measured):
    rounds = [
        {step: steps[step] for step in sorted(steps)[: bench_file.WINDOW]}
        for steps in measured.rounds
    ]
    return replace(measured, rounds=rounds)
