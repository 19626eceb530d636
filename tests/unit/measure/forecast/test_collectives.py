"""Times of all-reduces, by formulas of their sources worked out by hand, and what backward hides."""

import pytest

from paceline.measure.forecast.collectives import (
    Exchange,
    MeasuredLink,
    Network,
    default_buckets,
    fit_link,
)

MIB = 1 << 20
FAST, SLOW = MeasuredLink(1e-5, 1e11), MeasuredLink(1e-4, 1e9)


@pytest.mark.parametrize(
    ("network", "num_bytes", "world", "seconds"),
    [
        (Network(SLOW, SLOW, 8), 1e9, 2, 2e-4 + 1.0),
        (Network(SLOW, SLOW, 8), 1e9, 4, 6e-4 + 1.5),
        (Network(SLOW, SLOW, 1), 1e9, 8, 14e-4 + 1.75),
        # Inside a node the link between nodes does not count, beyond it the slowest does.
        (Network(FAST, SLOW, 4), 1e9, 4, 6e-5 + 0.015),
        (Network(FAST, SLOW, 4), 1e9, 8, 14e-4 + 1.75),
        # NCCL's ring crosses between two nodes in 2 of 14 steps.
        (Network(FAST, SLOW, 4, has_trees=True), 1e9, 8, 2e-4 + 12e-5 + 1.75),
        # Its tree has fewer steps, and is faster for small messages on many nodes.
        (Network(FAST, SLOW, 4, has_trees=True), 1e3, 1024, 6e-5 + 16e-4 + 2e-6),
    ],
)
def test_an_all_reduce(network, num_bytes, world, seconds):
    assert network.all_reduce_s(num_bytes, world) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("buckets", "backward_s", "seconds"),
    [
        ((1e9,), 5.0, 1.0),  # the last bucket is never hidden
        ((5e8, 5e8), 2.0, 0.5),  # the first one is sent during the second half of backward
        ((5e8, 5e8), 0.2, 0.9),  # backward is too short for that
        ((5e8, 5e8), 0.0, 1.0),
    ],
)
def test_backward_hides_all_but_the_last_bucket(buckets, backward_s, seconds):
    network = Network(MeasuredLink(0.0, 1e9), MeasuredLink(0.0, 1e9), 8)
    assert Exchange(buckets).exposed_s(network, 2, backward_s) == pytest.approx(seconds)
    assert Exchange(buckets).exposed_s(network, 1, backward_s) == 0.0


def test_what_is_hidden_of_unknown_bytes_is_a_time():
    network = Network(MeasuredLink(0.0, 1.0), MeasuredLink(0.0, 1.0), 8)  # one exchange per second
    assert Exchange((1.0,), hidden_s=0.25).exposed_s(network, 2, 3.0) == pytest.approx(0.75)
    assert Exchange((1.0,), hidden_s=5.0).exposed_s(network, 2, 3.0) == 0.0


@pytest.mark.parametrize(
    ("gradient_bytes", "buckets"),
    [
        (1000, [1000]),
        (MIB, [MIB]),
        (26 * MIB, [MIB, 25 * MIB]),
        (60 * MIB, [MIB, 25 * MIB, 25 * MIB, 9 * MIB]),
    ],
)
def test_default_buckets(gradient_bytes, buckets):
    assert list(default_buckets(gradient_bytes)) == buckets


@pytest.mark.parametrize("world", [2, 4, 16])
def test_a_link_is_found_again(world):
    truth = Network(SLOW, SLOW, world)
    points = [(4.0**power, truth.all_reduce_s(4.0**power, world)) for power in range(5, 15)]
    link, error = fit_link(points, world)
    assert link.latency_s == pytest.approx(SLOW.latency_s)
    assert link.bytes_per_s == pytest.approx(SLOW.bytes_per_s)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_a_noisy_link_has_an_error_and_positive_figures():
    truth = Network(SLOW, SLOW, 2)
    noise = (1.3, 0.8, 1.1, 0.7, 1.2, 0.9, 1.1, 1.0, 1.05, 0.95)
    points = [
        (4.0**power, truth.all_reduce_s(4.0**power, 2) * factor)
        for power, factor in zip(range(5, 15), noise, strict=True)
    ]
    link, error = fit_link(points, 2)
    assert link.bytes_per_s == pytest.approx(SLOW.bytes_per_s, rel=0.15)
    assert 0.05 < error < 0.3


def test_falling_times_do_not_give_a_negative_latency():
    link, _ = fit_link([(1024.0, 0.002), (4096.0, 0.001), (16384.0, 0.0005)], 2)
    assert link.latency_s > 0
    assert link.bytes_per_s > 0
