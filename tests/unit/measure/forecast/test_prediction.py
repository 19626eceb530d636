"""Forecasts from benches of a known truth: right, with intervals, and refused where they would be guesses."""

import json

import pytest

from paceline.errors import SetupError
from paceline.measure.bench_file import BenchFile
from paceline.measure.forecast import prediction
from unit.measure.forecast.synthetic import Truth, bench, network

TRUTHS = {
    "exposed communication": Truth(),
    "hidden communication": Truth(bytes_per_s=200e6),
    "latency of many buckets": Truth(bytes_per_s=1e9, latency_s=2e-3, buckets=(100_000,) * 8),
    "skewed work": Truth(spread_s=0.05, skewed=True, bytes_per_s=100e6),
    "steady work": Truth(spread_s=1e-4),
}


def predict(values, **options):
    return prediction.predict(BenchFile.from_json(values), **options)


@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
@pytest.mark.parametrize("world", [3, 4, 8, 32])
def test_more_ranks_are_forecast_from_one_and_two_and_the_network(truth, world):
    (point,) = predict(bench(truth, network=network(truth)), worlds=[world]).points
    actual = truth.samples_per_s(world)
    assert point.samples_per_s == pytest.approx(actual, rel=0.06)
    assert point.low <= actual <= point.high
    assert (point.high - point.low) / 2 / point.samples_per_s < 0.2


def test_small_messages_that_waited_for_a_busy_cpu_do_not_slow_the_forecast():
    """Their median was six times their least time on two loaded CPUs (docs/log.md)."""
    truth = Truth()
    measured = network(truth)
    for point in measured["points"]:
        point["low"] = point["seconds"]
        if point["bytes"] < 1 << 16:
            point["seconds"] = 6 * point["low"]
    (point,) = predict(bench(truth, network=measured), worlds=[8]).points
    assert point.samples_per_s == pytest.approx(truth.samples_per_s(8), rel=0.06)


@pytest.mark.parametrize("latency_s", [1e-5, 1e-4, 4e-4])
def test_without_the_network_the_interval_holds_plausible_latencies(latency_s):
    truth = Truth(latency_s=latency_s)
    actual = truth.samples_per_s(8)
    forecast = predict(bench(truth), worlds=[8])
    assert forecast.points[0].low <= actual <= forecast.points[0].high
    assert any("latency and bandwidth apart" in note for note in forecast.notes)


def test_three_world_sizes_determine_latency_and_bandwidth():
    truth = TRUTHS["latency of many buckets"]
    (point,) = predict(bench(truth, worlds=(1, 2, 4)), worlds=[16]).points
    assert point.samples_per_s == pytest.approx(truth.samples_per_s(16), rel=0.1)


def test_most_intervals_hold_the_truth():
    truth, within = TRUTHS["skewed work"], 0
    actual = truth.samples_per_s(8)
    for seed in range(20):
        (point,) = predict(
            bench(truth, seed=seed, steps=15, network=network(truth)), worlds=[8]
        ).points
        within += point.low <= actual <= point.high
    assert within >= 18


def test_strong_scaling_shares_out_the_batch():
    truth = Truth(strong=True, fixed_share=0.3, samples=64, bytes_per_s=1e9)
    forecast = predict(bench(truth, worlds=(1, 2, 4), network=network(truth)), worlds=[8, 16, 128])
    assert [point.world for point in forecast.points] == [8, 16]  # 64 samples: no 128 ranks
    for point in forecast.points:
        actual = truth.samples_per_s(point.world)
        assert point.samples_per_s == pytest.approx(actual, rel=0.08)


def test_a_slow_rank_is_expected_among_more_ranks():
    even = predict(bench(Truth(bytes_per_s=1e9)), worlds=[16]).points[0]
    uneven = predict(bench(Truth(bytes_per_s=1e9, slow_rank=1)), worlds=[16]).points[0]
    assert uneven.samples_per_s == pytest.approx(even.samples_per_s * 0.27 / 0.33, rel=0.1)
    assert uneven.samples_per_s < 0.87 * even.samples_per_s


def test_throughput_relative_to_one_rank_is_the_efficiency():
    forecast = predict(bench(), worlds=[2, 4])
    for point in forecast.points:
        expected = point.samples_per_s / point.world / forecast.single_per_s
        assert point.efficiency == pytest.approx(expected)
    assert forecast.single_per_s == pytest.approx(64 / 0.2, rel=0.02)


@pytest.mark.parametrize(
    ("truth", "half_worth_at", "should_scale"),
    [(Truth(bytes_per_s=1e12, latency_s=1e-9), None, True), (Truth(bytes_per_s=1e6), 1, False)],
)
def test_where_another_rank_is_worth_less_than_half(truth, half_worth_at, should_scale):
    forecast = predict(bench(truth, network=network(truth)))
    assert forecast.half_worth_at == half_worth_at
    assert forecast.should_scale is should_scale


def test_latency_ends_scaling_where_it_grows_as_fast_as_ranks_are_added():
    truth = Truth(bytes_per_s=1e12, latency_s=1e-4, buckets=(1000,), spread_s=1e-3)
    forecast = predict(bench(truth, network=network(truth)))
    # With a step of c + 2(N-1)a, N ranks make N/(c + 2Na): half of 1/c remains where 2Na = 0.41c.
    assert forecast.half_worth_at == pytest.approx(0.414 * 0.2 / 2e-4, rel=0.15)


def test_a_second_node_that_was_never_measured_makes_bounds():
    values = bench(
        Truth(bytes_per_s=500e6, buckets=(4 << 20,) * 4), worlds=(1, 2, 4), one_node=True
    )
    inside, beyond = predict(values, worlds=[4, 8]).points
    assert not inside.is_bound
    assert beyond.is_bound
    assert (inside.num_nodes, beyond.num_nodes) == (1, 2)
    assert (beyond.high - beyond.low) / beyond.samples_per_s > 0.1
    forecast = predict(values, worlds=[8])
    assert any("No second node was measured" in note for note in forecast.notes)


def test_more_ranks_on_a_node_than_measured_are_pointed_out():
    forecast = predict(bench(one_node=True), worlds=[8], ranks_per_node=8)
    assert forecast.points[0].num_nodes == 1
    assert any("take from each other" in note for note in forecast.notes)


@pytest.mark.parametrize(
    ("cpus", "cpu_s", "least_s", "most_s"),
    [
        (0, 0.1, 0.0, 0.0),  # unknown
        (8, 0.1, 0.0, 0.0),  # one for each rank
        (4, 0.02, 0.005, 0.02),  # two ranks for each: one may wait for another
        (4, 0.3, 0.35, 0.65),  # 8 * 0.3 s on 4 CPUs take 0.6 s, which is more than a step of 0.2
    ],
)
def test_ranks_that_are_more_than_the_cpus_of_a_node_wait_for_them(cpus, cpu_s, least_s, most_s):
    values = bench(Truth(spread_s=1e-4, bytes_per_s=1e9), one_node=True)

    def step_s(seconds, **shared):
        for world in values["worlds"].values():
            world["cpu_s_per_step"] = seconds
        forecast = predict({**values, **shared}, worlds=[8], ranks_per_node=8)
        (point,) = forecast.points
        steps_s = [8 * 64 / speed for speed in (point.high, point.samples_per_s, point.low)]
        return steps_s, any("their waits for" in note for note in forecast.notes)

    (low, value, high), _ = step_s(0.0)
    (low_shared, value_shared, high_shared), is_said = step_s(cpu_s, cpus=cpus)
    assert is_said == bool(cpus)
    assert least_s <= value_shared - value <= most_s
    assert low_shared >= low
    assert 0.9 * (value_shared - value) <= high_shared - high <= most_s


def test_a_link_inside_a_node_that_was_never_measured_is_pointed_out():
    def says_so(**options):
        return any("alone on a node" in note for note in predict(bench(), **options).notes)

    assert says_so(ranks_per_node=4)
    assert not says_so()
    assert not says_so(ranks_per_node=4, networks=[network(one_node=True)])


def test_unknown_bytes_widen_the_interval():
    known, unknown = bench(), bench(gradient_bytes=None, bucket_bytes=None)
    widths = [
        point.high - point.low
        for values in (known, unknown)
        for point in predict(values, worlds=[8]).points
    ]
    assert widths[1] > widths[0]
    actual = Truth().samples_per_s(8)
    (point,) = predict(unknown, worlds=[8]).points
    assert point.low <= actual <= point.high


def test_without_samples_batches_are_counted():
    values = bench()
    for world in values["worlds"].values():
        world["samples_per_step"] = 0
    forecast = predict(values, worlds=[4])
    assert forecast.unit == "batches"
    assert forecast.single_per_s == pytest.approx(1 / 0.2, rel=0.02)


def apart(values):
    """The bench with ranks that do not wait: their exchange takes no time."""
    for steps in values["worlds"]["2"]["rounds"]:
        for durations in (durations for step in steps.values() for durations in step.values()):
            durations[-1] = 0
    return values


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (bench(worlds=(2,)), "one world size, and no measurement of the network"),
        (bench(worlds=(1,)), "one world size"),
        (bench(worlds=()), "fewer than 16 steps"),
        (bench(rounds=1, steps=10), "fewer than 16 steps"),
        (
            bench(worlds=(1,), gradient_bytes=None, bucket_bytes=None, network=network()),
            "no exchange was measured",
        ),
        (bench(Truth(strong=True), worlds=(2,), network=network()), "two sizes of the batch"),
        (bench(Truth(strong=True, samples=0)), "the number of samples"),
        (apart(bench(gradient_bytes=None, bucket_bytes=None)), "do not wait for each other"),
    ],
)
def test_a_bench_that_is_not_enough_is_refused(values, reason):
    with pytest.raises(SetupError, match="bench-insufficient") as refusal:
        predict(values)
    assert reason in refusal.value.finding.what
    assert refusal.value.finding.fix == "paceline bench --world 1,2 train.py"


@pytest.mark.parametrize(
    "values",
    [
        bench(worlds=()) | {"worlds": {"2": bench()["worlds"]["1"]}},
        bench(network={"points": []}),
        bench(network={"world": "two", "points": []}),
        bench(network={"world": 2, "points": [{}]}),
        bench(network={"world": 2, "points": []}),
        bench(network={"world": 2, "points": [{"bytes": 4, "seconds": 0}] * 2}),
        bench(Truth(own_s=0.0, spread_s=0.0, buckets=(1,), latency_s=0.0)),
    ],
    ids=["ranks", "without-world", "world", "point", "points", "seconds", "steps"],
)
def test_a_damaged_bench_is_refused(values):
    with pytest.raises(SetupError, match="input-unreadable"):
        predict(values)


def test_a_network_alone_is_enough_with_one_rank():
    truth = Truth()
    (point,) = predict(bench(truth, worlds=(1,), network=network(truth)), worlds=[8]).points
    assert point.samples_per_s == pytest.approx(truth.samples_per_s(8), rel=0.06)


def test_one_rank_that_was_not_measured_is_its_own_work():
    forecast = predict(bench(worlds=(2, 4)), worlds=[8])
    assert forecast.single_per_s == pytest.approx(64 / 0.2, rel=0.02)
    assert any("One rank alone was not measured" in note for note in forecast.notes)
    assert not any("One rank alone" in note for note in predict(bench()).notes)


def test_a_network_between_nodes_completes_a_bench_on_one():
    fast, slow = Truth(bytes_per_s=2e9), Truth(bytes_per_s=12e6)
    values = bench(fast, worlds=(1, 2), one_node=True, network=network(fast, one_node=True))
    forecast = predict(values, worlds=[2, 8], networks=[network(slow)], ranks_per_node=2)
    inside, beyond = forecast.points
    assert inside.samples_per_s == pytest.approx(fast.samples_per_s(2), rel=0.05)
    # gloo's ring is as fast as its slowest link.
    assert beyond.samples_per_s == pytest.approx(slow.samples_per_s(8), rel=0.06)
    assert not beyond.is_bound


@pytest.mark.parametrize(("chance", "stall_s"), [(0.02, 0.6), (0.05, 0.3)])
@pytest.mark.parametrize("world", [4, 16])
def test_stalls_of_single_ranks_hold_back_more_ranks_more_often(chance, stall_s, world):
    truth = Truth(bytes_per_s=100e6, stall_chance=chance, stall_s=stall_s)
    actual = truth.samples_per_s(world)
    within = 0
    for seed in range(20):
        measured = bench(truth, steps=60, seed=seed, network=network(truth))
        (point,) = predict(measured, worlds=[world]).points
        assert point.samples_per_s == pytest.approx(actual, rel=0.25)
        within += point.low <= actual <= point.high
    assert within >= 15


def test_the_same_bench_gives_the_same_forecast():
    assert predict(bench(), worlds=[8]) == predict(bench(), worlds=[8])


def test_json_is_what_a_report_reads():
    result = json.loads(json.dumps(predict(bench()).to_json()))
    assert {"points", "half_worth_at", "notes", "should_scale"} <= set(result)
    assert set(result["points"][0]) == {
        *("world", "num_nodes", "samples_per_s", "low", "high", "efficiency", "is_bound")
    }
    assert [point["world"] for point in result["points"]] == list(prediction.WORLDS)
