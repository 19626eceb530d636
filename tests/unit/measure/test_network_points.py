"""What ``bench network`` prints of measured all-reduces."""

import json

import pytest

from paceline.measure import network_points
from paceline.text import wording

MIB = 1 << 20


def described(seconds=0.001, *, world=4, num_nodes=2, largest=256 * MIB):
    blocks = {
        size: [[seconds * factor] * 3 for factor in (0.99, 1.0, 1.01)] for size in (1024, largest)
    }
    hosts = [f"node-{rank % num_nodes}" for rank in range(world)]
    return network_points.describe(blocks, backend="gloo", hosts=hosts, num_nodes=num_nodes)


@pytest.mark.parametrize(
    ("size", "seconds", "world", "expected"),
    [(1e9, 1.0, 2, 1e9), (1e9, 1.0, 4, 1.5e9), (1e9, 0.5, 8, 3.5e9)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(size, seconds, world, expected):
    assert network_points.bus_bytes_per_s(size, seconds, world) == pytest.approx(expected)


def test_points_have_medians_and_intervals():
    result = json.loads(json.dumps(described()))
    assert (result["kind"], result["world"], result["num_nodes"]) == ("network", 4, 2)
    for point in result["points"]:
        assert point["low"] <= point["seconds"] == 0.001 <= point["high"]
        assert (point["rounds"], point["repeats"]) == (3, 3)


def test_the_table_names_latency_and_bandwidth():
    text = network_points.render(described())
    assert "all_reduce over 4 ranks on 2 nodes, gloo" in text
    assert "latency 1 ms (1 KiB), highest bus bandwidth 403 GB/s (256 MiB)" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "--seconds" not in text


def test_what_the_time_did_not_allow_is_said():
    text = network_points.render(described(largest=4 * MIB))
    assert "larger sizes did not fit into the time" in text


def test_wide_intervals_are_pointed_out():
    blocks = {1024: [[0.001], [0.002], [0.004]]}
    result = network_points.describe(blocks, backend="gloo", hosts=["a", "b"], num_nodes=2)
    assert "wide intervals" in network_points.render(result)
    assert "wide intervals" not in network_points.render(described())


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (wording.size, 1024, "1 KiB"),
        (wording.size, 256 * MIB, "256 MiB"),
        (wording.size, 12, "12 B"),
        (network_points.rate_text, 11.6e6, "11.6 MB/s"),
        (network_points.rate_text, 4.03e11, "403 GB/s"),
        (network_points.rate_text, 12, "12 B/s"),
        (network_points.duration_text, 1.445, "1.45 s"),
        (network_points.duration_text, 0.0215, "21.5 ms"),
        (network_points.duration_text, 7.8e-4, "780 us"),
    ],
)
def test_units(function, value, text):
    assert function(value) == text
