"""What a report shows: rates, efficiency, names, plots and sentences, as tables of cases."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

import report_runs
from paceline.measure.intervals import Interval
from paceline.measure.report import drawing, measured_files, overview, plots, speed, text
from paceline.measure.report.facts import (
    AttemptFacts,
    RankTime,
    ReportedRun,
    Scaling,
    Series,
    SpeedPoint,
    StepSplit,
)
from paceline.measure.report.sections import sections

NAN = float("nan")


def point(time_s, steps, *, attempt=0, samples=64.0, split=None, own_rate=0.0):
    return SpeedPoint(attempt, time_s, steps, None, samples, split, own_rate)


def test_the_end_of_a_run_is_no_part_of_its_rate():
    """Ranks end some time before the launcher describes the speed for the last time."""
    attempts = [AttemptFacts(0, 100.0, 112.0)]
    points = [point(105, 400, own_rate=120.0), point(109, 500, own_rate=118.0)]
    assert [rate.steps_per_s for rate in speed.rates(attempts, points)] == [118.0]


def test_rates_are_those_between_two_descriptions_of_one_attempt():
    attempts = [AttemptFacts(0, 100.0, 115.0), AttemptFacts(1, 900.0, 910.0)]
    points = [point(105, 10), point(110, 60), point(115, 110)]
    points += [point(905, 5, attempt=1), point(910, 30, attempt=1)]
    rates = speed.rates(attempts, points)
    assert [rate.steps_per_s for rate in rates] == [10.0, 10.0, 5.0]
    assert [rate.elapsed_s for rate in rates] == [10.0, 15.0, 25.0]  # without the pause
    assert rates[0].samples_per_s == 640.0


def test_two_records_are_a_line_as_long_as_their_interval():
    run = ReportedRun(
        "r", "", attempts=(AttemptFacts(0, 0.0, 10.0),), speed=(point(5, 10), point(10, 60))
    )
    (curve,) = next(part.plots for part in sections([run]) if part.plots)[0].curves
    assert (curve.form, curve.x, curve.y) == ("line", [5.0, 10.0], [640.0, 640.0])


def test_the_loss_of_the_last_batch_of_one_rank_is_no_figure_of_the_run():
    seen = SpeedPoint(0, 5.0, 10, 0.2946, 64.0)
    run = ReportedRun("r", "", attempts=(AttemptFacts(0, 0.0, 5.0),), speed=(seen,))
    assert "loss" not in overview.figures(run)
    logged = replace(run, metrics={"train/loss": Series((1,), (0.25,))})
    assert overview.figures(logged)["loss"] == "0.25"


def test_the_interval_that_the_end_cuts_short_is_left_out():
    points = [point(5.0 * number, 50 * number) for number in range(1, 5)] + [point(21.0, 201)]
    assert len(speed.rates([AttemptFacts(0, 0.0, 21.0)], points)) == 3


@pytest.mark.parametrize("points", [[], [point(5, 10)], [point(5, 10), point(5, 20)]])
def test_without_an_interval_there_is_no_rate(points):
    assert speed.rates([AttemptFacts(0, 0.0, 9.0)], points) == []


def split(seconds, late_rank=""):
    return StepSplit(seconds, {"data": seconds / 4, "forward": seconds * 3 / 4}, late_rank, 10)


def test_the_split_of_a_run_weighs_each_description_by_its_steps():
    points = [point(5, 30, split=split(0.1)), point(10, 40, split=split(0.5)), point(15, 40)]
    mean = speed.mean_split(points)
    assert mean.seconds == pytest.approx((30 * 0.1 + 10 * 0.5) / 40)
    assert mean.parts["data"] == pytest.approx(mean.seconds / 4)


def test_the_split_is_that_of_the_last_attempt():
    points = [point(5, 900, split=split(9.0)), point(99, 10, attempt=1, split=split(0.1))]
    assert speed.mean_split(points).seconds == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("sentences", "expected"), [(["a", "", ""], ""), (["a", "b", ""], "b"), (["", ""], "")]
)
def test_a_rank_is_named_if_most_of_the_run_names_one(sentences, expected):
    points = [point(n, n, split=split(0.1, text)) for n, text in enumerate(sentences, 1)]
    assert speed.mean_split(points).late_rank == expected


def test_scaling_of_a_bench_of_known_truth():
    """Own work of 20 ms for all, and an exchange of 5 ms on two ranks: 80 % of ideal."""
    worlds = {
        "1": report_runs.world(1, jitter=0.0),
        "2": report_runs.world(2, jitter=0.0, exchange_us=5_000),
    }
    one, two = measured_files.parse_bench(report_runs.bench(worlds=worlds)).figures
    assert one.samples_per_s.value == pytest.approx(1600)
    assert two.samples_per_s.value == pytest.approx(2560)
    assert two.ideal_samples_per_s == pytest.approx(3200)
    assert two.efficiency.value == pytest.approx(0.8)


def test_strong_scaling_compares_the_same_samples():
    halves = {**report_runs.world(2, jitter=0.0, step_us=10_000), "samples_per_step": 32}
    worlds = {"1": report_runs.world(1, jitter=0.0), "2": halves}
    values = report_runs.bench(worlds=worlds, scaling="strong")
    assert measured_files.parse_bench(values).figures[1].efficiency.value == pytest.approx(1.0)


def test_intervals_hold_the_estimate():
    for row in measured_files.parse_bench(report_runs.bench()).figures:
        assert row.samples_per_s.low <= row.samples_per_s.value <= row.samples_per_s.high
        assert row.efficiency.low <= row.efficiency.value <= row.efficiency.high


def test_the_step_of_a_bench_ends_when_the_last_rank_has_exchanged():
    """The waiting of the first rank is in its exchange, and must not be counted twice."""
    step = {"0": [1000, 0, 0, 0, 0, 9000], "1": [7000, 0, 0, 0, 0, 3000]}
    world = {"num_nodes": 1, "samples_per_step": 8, "hosts": {}, "rounds": [{"1": step, "2": step}]}
    bench = measured_files.parse_bench(report_runs.bench(worlds={"2": world}))
    assert bench.figures[0].step_s.value == pytest.approx(0.01)


@pytest.mark.parametrize("rounds", [[], [{}], [{}, {}]])
def test_a_world_without_steps_is_left_out(rounds):
    worlds = {"1": report_runs.world(1), "2": {**report_runs.world(2), "rounds": rounds}}
    rows = measured_files.parse_bench(report_runs.bench(worlds=worlds)).figures
    assert [row.ranks for row in rows] == [1]


def runs(*commands):
    return [ReportedRun(f"name-{place}", "", command) for place, command in enumerate(commands)]


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([("a.py",)], ["name-0"]),
        ([("a.py", "--lr", "1"), ("a.py", "--lr", "2")], ["--lr 1", "--lr 2"]),
        ([("a.py", "--lr=1", "--x"), ("a.py", "--lr=2", "--x")], ["--lr=1", "--lr=2"]),
        ([("a.py", "--x"), ("a.py",)], ["name-0", "name-1"]),
        ([("a.py",), ("a.py",)], ["name-0", "name-1"]),
        ([("a.py",), ("b.py",)], ["a.py", "b.py"]),
        ([(), ()], ["name-0", "name-1"]),
        ([("a.py", "\x1b[1m"), ("a.py", "b")], ["\\x1b[1m", "b"]),
    ],
)
def test_runs_are_named_by_what_differs(commands, expected):
    assert plots.of_runs(runs(*commands)) == expected


def test_long_names_that_begin_alike_are_numbered():
    same = [ReportedRun("x" * 40 + end, "") for end in "ab"]
    assert plots.of_runs(same) == ["run 1", "run 2"]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        *(("train/loss", "loss"), ("val_loss", "loss"), ("loss", "loss"), ("lr", "lr")),
        *(("test.top-5", "top 5"), ("val", "val"), ("trainer", "trainer"), ("", "")),
    ],
)
def test_metrics_of_one_kind_share_a_plot(name, group):
    assert plots.metric_group(name) == group


def test_thinning_keeps_peaks_and_gaps():
    x = list(range(10_000))
    y = [math.sin(value / 50) for value in x]
    y[1234], y[5678], y[9000] = 40.0, -40.0, NAN
    thin_x, thin_y = plots.thinned(x, y)
    assert len(thin_x) <= 1300
    assert {40.0, -40.0, None} <= set(thin_y)
    assert thin_x == sorted(thin_x)
    assert all(
        value is None or y[place] == value for place, value in zip(thin_x, thin_y, strict=True)
    )


def test_few_points_are_not_thinned():
    assert plots.thinned([1, 2], [1.0, float("inf")]) == ([1, 2], [1.0, None])


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        ([], []),
        ([50.0], [50.0]),
        ([50.0, 100.0], [50.0, 100.0]),
        ([50.0, 50.0], [42.0, 58.0]),
        ([58.0, 42.0, 50.0], [66.0, 34.0, 50.0]),
        ([2.0, 3.0], [0.0, 16.0]),
        ([299.0, 298.0, 100.0], [300.0, 284.0, 100.0]),
    ],
)
def test_labels_that_touch_are_moved_apart(pixels, expected):
    assert drawing.spread(pixels, 16, 300) == pytest.approx(expected)


def test_labels_never_touch():
    heights = [3.0, 90.0, 91.0, 92.0, 110.0, 250.0, 4.0, 100.0]
    moved = sorted(drawing.spread(heights, 16, 260))
    assert all(upper - lower >= 16 - 1e-9 for lower, upper in itertools.pairwise(moved))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [1, 2, 5, 10]),
        (-3.1, 0.1, [0.001, 0.01, 0.1, 1]),
        (0.2, 0.8, [2, 5]),
        (-1.0, 14.0, [0.1, 10, 1000, 1e5, 1e7, 1e9, 1e11, 1e13]),
    ],
)
def test_ticks_of_a_logarithmic_axis(low, high, ticks):
    assert drawing.log_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((5.214, "5.21 s"), (46.2, "46.2 s"), (60, "1 min 00 s"), (3599.9, "1 h 00 min")),
        *((12_000, "3 h 20 min"), (200_000, "2 d 07 h")),
    ],
)
def test_times_in_two_units(seconds, text):
    assert overview.time_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0127, "0.0127"), (2, "2.00"), (99.96, "100"), (13340.2, "13,340")]
)
def test_numbers_have_three_digits(value, text):
    assert overview.significant(value) == text


def test_a_step_in_a_sentence_begins_with_its_largest_part():
    parts = {"data": 0.02, "forward": 0.0799, "optimizer": 0.0001}
    late = "rank 1 on b takes 4 ms longer in data than the others"
    assert overview.step_sentences(StepSplit(0.1, parts, late)) == [
        "A step takes 100 ms: forward 80%, data 20%.",
        "Rank 1 on b takes 4 ms longer in data than the others.",
    ]


def test_the_longest_rank_is_compared_with_the_median():
    ranks = tuple(RankTime(number, "n", 0.01 + 0.01 * (number == 2), 0.0) for number in range(4))
    assert overview.rank_sentences(ReportedRun("r", "", ranks=ranks)) == [
        "Rank 2 on n works longest, 20.0 ms a step; the median is 10.0 ms."
    ]


def titles(run, *more):
    return [(section.title, len(section.plots)) for section in sections([run, *more])]


def test_a_run_has_no_section_without_a_plot():
    assert titles(ReportedRun("r", "")) == []


def test_a_metric_that_is_not_finite_is_said():
    run = ReportedRun("r", "", metrics={"loss": Series((1, 2, 3), (1.0, NAN, 2.0))})
    plot = sections([run])[0].plots[0]
    assert plot.subtitle == "loss is not finite from step 2 on"
    assert list(plot.curves[0].y) == [1.0, None, 2.0]


@pytest.mark.parametrize(
    ("values", "is_log"),
    [((2.0, 0.001), True), ((2.0, 0.5), False), ((2.0, 0.0), False), ((-1.0, 500.0), False)],
)
def test_a_wide_range_is_logarithmic(values, is_log):
    run = ReportedRun("r", "", metrics={"loss": Series((1, 2), values)})
    assert sections([run])[0].plots[0].y.is_log is is_log


@pytest.mark.parametrize("others", [0, 1])
def test_two_values_are_points(others):
    runs = [
        ReportedRun(name, "", metrics={"loss": Series((1, 2), (2.0, 1.0))})
        for name in "ab"[: 1 + others]
    ]
    assert {curve.form for curve in sections(runs)[0].plots[0].curves} == {"dots"}


def test_colours_stand_for_runs_where_there_are_several():
    series = Series((1, 2, 3), (2.0, 1.0, 0.5))
    one = ReportedRun("a", "", metrics={"train/loss": series, "val/loss": series})
    looks = {
        len(shown): [(c.name, c.colour, c.form) for c in sections(shown)[0].plots[0].curves]
        for shown in ([one], [one, ReportedRun("b", "", metrics={"train/loss": series})])
    }
    assert looks[1] == [("train/loss", "run-0", "line"), ("val/loss", "run-1", "line")]
    assert looks[2] == [
        ("a · train/loss", "run-0", "line"),
        ("a · val/loss", "run-0", "dashed"),
        ("b · train/loss", "run-1", "line"),
    ]


def luminance(colour):
    """The relative luminance of WCAG 2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_are_readable_on_their_page(theme):
    colours = drawing.palettes()[theme]
    page = luminance(colours["page"])
    for role, colour in colours.items():
        if role.endswith("-ink") or role.startswith("text"):
            bright, dim = sorted((luminance(colour), page), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, role


@pytest.mark.parametrize(
    ("world_size", "hosts", "steps", "words"),
    [
        (1, ("node-a",), 1, "run · 1 rank · 1 step"),
        (4, ("node-a",), 20, "run · 4 ranks · 20 steps"),
        (4, ("node-a", "node-b"), 1200, "run · 4 ranks on 2 hosts · 1,200 steps"),
    ],
)
def test_ranks_and_steps_are_counted_in_words(world_size, hosts, steps, words):
    run = ReportedRun("run", "run", world_size=world_size, hosts=hosts, steps=steps)
    assert text.render([run]).splitlines()[1] == words


@pytest.mark.parametrize(
    ("sizes", "words"),
    [([1], "1 rank"), ([2], "2 ranks"), ([1, 2], "1 and 2 ranks"), ([1, 2, 4], "1, 2 and 4 ranks")],
)
def test_the_sizes_of_a_bench_are_listed(sizes, words):
    one = Interval(1.0, 1.0, 1.0)
    rows = tuple(Scaling(size, one, one, 1.0, one) for size in sizes)
    assert overview.figures(ReportedRun("run", "run", scaling=rows))["measured with"] == words


def test_memory_over_time_is_drawn_where_it_is_known():
    points = [SpeedPoint(0, 5.0 * n, 10 * n, memory_bytes=n * 2**30) for n in range(1, 5)]
    known = ReportedRun("a", "", attempts=(AttemptFacts(0, 0.0, 20.0),), speed=tuple(points))
    unknown = replace(known, speed=tuple(replace(point, memory_bytes=0.0) for point in points))
    plots = [plot for section in sections([known, unknown]) for plot in section.plots]
    (memory,) = [plot for plot in plots if plot.title == "Memory of a rank"]
    assert [list(curve.y) for curve in memory.curves] == [[1.0, 2.0, 3.0, 4.0]]
    assert not any(plot.title == "GPU memory of a rank" for plot in plots)
    on_gpu = replace(unknown, speed=tuple(replace(p, gpu_memory_bytes=2**31) for p in points))
    plots = [plot for section in sections([on_gpu]) for plot in section.plots]
    (memory,) = [plot for plot in plots if plot.title == "GPU memory of a rank"]
    assert [list(curve.y) for curve in memory.curves] == [[2.0] * 4]
