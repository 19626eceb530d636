"""What counters show: facts in, a Finding or nothing out."""

from __future__ import annotations

import pytest

from paceline.counters import Split
from paceline.launch.monitor import observations
from paceline.launch.monitor.observations import Pace


@pytest.mark.parametrize(
    ("hashes", "works", "told"),
    [
        ([7, 7], [5, 5], True),
        ([7], [5], True),  # a node's ranks that agree tell one hash
        ([], [], False),
        ([7, 8], [5, 5], False),
        ([7, 7, 0], [5, 5, 5], False),
        ([0, 0], [5, 5], False),
        ([7, 7], [5, 6], False),  # they read the same, and compute different things from it
        ([7, 7], [5, 0], False),
        ([7, 7], [0, 0], False),  # not shown
    ],
)
def test_the_same_data_on_all_ranks(hashes, works, told):
    found = observations.same_data(hashes, works, world_size=2, indices=64)
    assert (found is not None) is told


def test_a_single_rank_reads_what_it_likes():
    assert observations.same_data([7], [5], world_size=1, indices=64) is None


@pytest.mark.parametrize(
    ("lengths", "found"), [((101, 102), True), ((100, 100), False), ((0, 0), False)]
)
def test_a_padded_evaluation(lengths, found):
    assert (observations.padded(*lengths, world_size=2) is not None) is found


@pytest.mark.parametrize(
    ("splits", "is_found"),
    [
        ([(7, False, 0b0111, 0b1000), (7, False, 0b1110, 0b0001)], True),
        ([(7, False, 0b0111, 0b1000), (7, False, 0b1110, 0)], True),  # only rank 0 evaluates
        ([(7, True, 0b0111, 0), (7, True, 0b1110, 0)], True),
        ([(7, False, 0b0111, 0), (7, False, 0b1110, 0)], False),  # nothing is held out or divided
        ([(7, True, 0b0111, 0b1000)], False),  # the same split
        ([(7, True, 0b0011, 0b1000), (7, True, 0b1100, 0b0001)], False),  # shares, on purpose
        ([(7, True, 0b0111, 0b1000), (8, True, 0b1110, 0b0001)], False),  # files of its own
        ([(7, True, 0b0111, 0b1000), (0, False, 0, 0)], False),  # not known of all
    ],
)
def test_a_split_that_differs(splits, is_found):
    found = observations.split_apart([Split(*split) for split in splits], world_size=2)
    assert (found is not None) is is_found


def rank(number, loops=0, last=0, first=0, opened=0, length=0):
    return {
        "rank": number,
        "loops": loops,
        "loop_batches": last,
        "first_loop_batches": first or last,
        "open_batches": opened,
        "loop_length": length,
    }


@pytest.mark.parametrize(
    ("counters", "what"),
    [
        (
            [rank(0, opened=41), rank(1, loops=1, last=40)],
            "rank 1's loader ended after 40 batches, rank 0 had taken 41",
        ),
        (
            [rank(0, opened=41), rank(1, loops=1, last=40), rank(2, opened=42)],
            "rank 1's loader ended after 40 batches, ranks 0, 2 had taken 41 to 42",
        ),
        (
            [
                rank(0, loops=4, last=41, opened=41),
                rank(1, loops=5, last=40),
                rank(2, loops=5, last=40, opened=3),
            ],
            "the loaders of ranks 1-2 ended after 40 batches, rank 0 had taken 41",
        ),
        (
            [rank(0, loops=1, last=41), rank(1, loops=1, last=40), rank(2, loops=1, last=40)],
            "the loaders of ranks 1-2 ended after 40 batches, rank 0 ended after 41",
        ),
        (
            [rank(0, loops=2, last=41, opened=39), rank(1, loops=3, last=40)],
            "rank 1's loader ended after 40 batches, rank 0 ended after 41",
        ),
        (
            [rank(0, opened=40, length=48), rank(1, loops=1, last=40, length=40)],
            "rank 1's loader ended after 40 batches, rank 0 has 48",
        ),
        ([rank(0, opened=40, length=40), rank(1, loops=1, last=40)], None),
        ([rank(0, opened=39, length=48), rank(1, loops=1, last=40)], None),
        ([], None),
        ([rank(0), rank(1)], None),
        ([rank(0, opened=3), rank(1, opened=40)], None),
        ([rank(0, loops=1, last=40), rank(1, loops=1, last=40)], None),
        ([rank(0, loops=1, last=40), rank(1, opened=40)], None),
        ([rank(0, loops=1, last=40), rank(1, opened=39)], None),
        ([rank(0, loops=1, last=-1), rank(1, opened=99)], None),
        ([rank(0, loops=1, last=-1), rank(1, loops=1, last=40)], None),
        ([rank(0, loops=3, last=40), rank(1, loops=1, last=40, opened=50)], None),
        ([rank(0, loops=2, last=40, first=41), rank(1, loops=2, last=40, first=40)], None),
    ],
)
def test_uneven_batches(counters, what):
    found = observations.uneven(counters)
    assert (found and found.what) == what


def test_uneven_batches_are_told_with_place_and_fix():
    found = observations.uneven([rank(0, opened=41), rank(1, loops=1, last=40)])
    assert (found.name, found.severity, found.where) == (
        "uneven-inputs",
        "error",
        "training loop 1 of rank 1",
    )
    assert all(
        word in found.fix for word in ("drop_last", "DistributedSampler", "session.loader", "Join")
    )
    drifted = observations.uneven([rank(0, loops=2, last=41, opened=39), rank(1, loops=3, last=40)])
    assert drifted.where == "training loop 1 of rank 1"


def pace(node, own_ms, *, data_ms=0.0, step_ms=50.0):
    return Pace(f"host-{node}", node, own_ms / 1e3, data_ms / 1e3, step_ms / 1e3)


@pytest.mark.parametrize(
    ("paces", "node"),
    [
        ([pace(0, 10), pace(1, 20)], 1),
        ([pace(0, 30), pace(1, 20), pace(2, 21)], 0),
        ([pace(0, 10), pace(1, 11.9)], None),  # not 1.2 times
        ([pace(0, 1), pace(1, 1.9, step_ms=2)], None),  # less than 1 ms
        ([pace(0, 10), pace(1, 13, step_ms=100)], None),  # less than 5 % of a step
        ([pace(0, 10), pace(1, 20), pace(2, 20), pace(3, 20)], None),  # most of them
        ([pace(0, 20)], None),
        ([], None),
    ],
)
def test_the_slowest_of_a_window(paces, node):
    found = observations.slowest(paces)
    assert (found and found.node) == node


SLOW, EVEN, OTHER = (
    [pace(0, 10), pace(1, 30)],
    [pace(0, 10), pace(1, 10)],
    [pace(0, 30), pace(1, 10)],
)


@pytest.mark.parametrize(
    ("windows", "told"),
    [
        ([SLOW] * 3, True),
        ([EVEN, SLOW, SLOW, SLOW], True),
        ([SLOW] * 2, False),
        ([SLOW, SLOW, EVEN], False),
        ([SLOW, EVEN, SLOW, SLOW], False),
        ([SLOW, OTHER, SLOW], False),
        ([], False),
    ],
)
def test_a_straggler_is_slow_for_three_windows_in_a_row(windows, told):
    assert (observations.straggler(windows) is not None) is told


def test_a_straggler_is_told_with_its_figures():
    found = observations.straggler([SLOW] * 3)
    assert (found.name, found.severity, found.where) == ("straggler", "warning", "host-1 (node 1)")
    assert found.what.endswith(
        "holds the others up: 30.0 ms of its own work a step, theirs 10.0 ms (3.0x)"
    )
    assert found.evidence[0] == "of it 0.0 ms waiting for data, theirs 0.0 ms"
    assert found.evidence[1] == "the others wait 40% of each step, which takes 50.0 ms"
    assert "top" in found.fix


def test_of_a_straggler_that_waits_for_data_the_storage_is_suspected():
    found = observations.straggler([[pace(0, 0), pace(1, 30, data_ms=25)]] * 3)
    assert "storage" in found.fix
    assert "25.0 ms waiting for data" in found.evidence[0]
    assert "x)" not in found.what
