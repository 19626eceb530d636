"""Which sizes ``bench network`` measures within its time."""

import pytest

from paceline.measure import network_worker


@pytest.mark.parametrize(
    ("seconds_of", "budget_s", "largest", "counts"),
    [
        # Everything is quick: all sizes, each fifty times in a round.
        (lambda size: 1e-6, 20.0, 256 << 20, {50}),
        # The first size is measured in any case.
        (lambda size: 10.0, 1.0, 1 << 10, {1}),
        # 1 GB/s: 256 MiB would take 0.27 s, seven times, and does not fit.
        (lambda size: size / 1e9, 3.0, 64 << 20, {50, 47, 11, 2, 1}),
    ],
)
def test_sizes_grow_until_the_time_is_spent(monkeypatch, seconds_of, budget_s, largest, counts):
    monkeypatch.setattr(
        network_worker, "_times", lambda size, count, device: [seconds_of(size)] * count
    )
    repeats = dict(network_worker._sizes(None, rounds=5, budget_s=budget_s))
    assert max(repeats) == largest
    assert min(repeats) == 1 << 10
    assert set(repeats.values()) == counts
