"""The pulse: a few integers in shared memory, written by ranks and read by their launcher."""

import os

import pytest

from paceline import counters
from paceline.counters import Counters, SharedCounters


@pytest.fixture
def handle():
    made = counters.create(3)
    yield made
    os.close(made)


def test_a_new_board_is_all_zeros(handle):
    board = SharedCounters(handle, 3)
    assert [board.read(rank) for rank in range(3)] == [Counters(0, 0, 0, 0.0, 0.0, 0.0)] * 3


def test_what_one_maps_and_writes_another_reads(handle):
    slot = SharedCounters(handle, 3).slot(1)
    slot[counters.PHASE] = counters.RUNNING
    slot[counters.STEPS] = 11
    slot[counters.BATCHES] = 12
    slot[counters.FIRST_STEP_NS] = 4_000_000_000
    slot[counters.LAST_STEP_NS] = 9_000_000_000
    slot[counters.DATA_NS] = 500_000_000
    slot[counters.BACKWARD_NS] = 2_500_000_000
    board = SharedCounters(handle, 3)
    assert board.read(1) == Counters(
        counters.RUNNING, 11, 12, 5.0, 0.5, 2.5, open_batches=12, step_s=0.5, beat_ns=9_000_000_000
    )
    assert board.read(1).steps_per_s == 2.0
    assert board.read(0) == board.read(2) == Counters(0, 0, 0, 0.0, 0.0, 0.0)


def test_slots_do_not_touch(handle):
    board = SharedCounters(handle, 3)
    for rank in range(3):
        slot = board.slot(rank)
        assert len(slot) == counters.SLOT_LENGTH
        for place in range(counters.SLOT_LENGTH):
            slot[place] = 100 * rank + place
    for rank in range(3):
        assert list(board.slot(rank)) == [
            100 * rank + place for place in range(counters.SLOT_LENGTH)
        ]


def test_clear_sets_all_to_zero(handle):
    board = SharedCounters(handle, 3)
    for rank in range(3):
        board.slot(rank)[counters.STEPS] = -5
    board.clear()
    assert not any(any(board.slot(rank)) for rank in range(3))


@pytest.mark.parametrize(
    ("steps", "seconds", "expected"),
    [(0, 0.0, 0.0), (1, 0.0, 0.0), (1, 2.0, 0.0), (3, 0.0, 0.0), (3, 4.0, 0.5)],
)
def test_the_first_step_is_left_out_of_the_rate(steps, seconds, expected):
    assert Counters(counters.RUNNING, steps, 0, seconds, 0.0, 0.0).steps_per_s == expected


def test_a_rank_that_has_made_only_its_first_step_has_taken_no_time(handle):
    board = SharedCounters(handle, 3)
    board.slot(0)[counters.FIRST_STEP_NS] = 5_000_000_000  # read between the two writes of a step
    assert board.read(0).seconds == 0.0


def test_time_outside_backward_is_never_negative(handle):
    slot = SharedCounters(handle, 3).slot(0)
    slot[counters.FIRST_STEP_NS], slot[counters.LAST_STEP_NS] = 4_000_000_000, 5_000_000_000
    slot[counters.BACKWARD_NS] = 1_500_000_000  # written before the step is
    assert SharedCounters(handle, 3).read(0).own_s == 0.0


def test_loops_and_what_is_open_are_read(handle):
    slot = SharedCounters(handle, 3).slot(1)
    for place, value in {
        counters.BATCHES: 100,
        counters.LOOPS: 2,
        counters.LOOP_BATCHES: 40,
        counters.FIRST_LOOP_BATCHES: 41,
        counters.BATCHES_BEFORE: 93,
        counters.BEAT_NS: 17,
        counters.ARMED: 1,
    }.items():
        slot[place] = value
    read = SharedCounters(handle, 3).read(1)
    assert (read.loops, read.loop_batches, read.first_loop_batches, read.open_batches) == (
        2,
        40,
        41,
        7,
    )
    assert (read.beat_ns, read.armed, read.step_s) == (17, True, 0.0)


def test_what_the_order_of_the_data_showed_is_read(handle):
    slot = SharedCounters(handle, 3).slot(2)
    slot[counters.DATA_HASH], slot[counters.DATA_INDICES] = -77, 64
    slot[counters.SAME_ORDER], slot[counters.ORDER_INDICES] = 2, 50
    board = SharedCounters(handle, 3)
    assert board.read_order(2) == counters.Order(-77, 64, 2, 50)
    assert board.read_order(0) == counters.Order()


def test_the_last_rare_checks_are_kept_and_some_place_keeps_a_frequent_one_for_long(handle):
    board = SharedCounters(handle, 3)
    for number in range(1, 101):
        check = counters.Check(3, -number / 3, 0.5)
        counters.write_check(board.slot(0), check, step=10 * number, at_powers=False)
        counters.write_check(board.slot(2), check, step=10 * number, at_powers=True)
    assert set(board.read_checks(0)) == {10 * number for number in (100, 96, 64)}
    assert set(board.read_checks(2)) == {10 * number for number in range(85, 101)}
    assert board.read_checks(0)[640] == counters.Check(3, -64 / 3, 0.5)
    assert (board.read_checks(1), board.read(0).checks, board.read(0).checked_step) == (
        {},
        100,
        1000,
    )


def test_ranks_that_are_read_apart_have_a_step_in_common(handle):
    board = SharedCounters(handle, 3)
    for rank, last in enumerate((70, 90, 127)):
        for number in range(1, last + 1):
            check = counters.Check(1, 0.0, 0.0)
            counters.write_check(board.slot(rank), check, step=number, at_powers=False)
    assert set(board.read_checks(0)) & set(board.read_checks(1)) & set(board.read_checks(2)) == {64}


def test_a_check_that_is_being_written_is_not_read(handle):
    board = SharedCounters(handle, 3)
    board.slot(0)[counters.CHECKS + 1] = 99
    assert board.read_checks(0) == {}


def test_the_memory_is_not_a_file_and_not_inherited_by_programs(handle):
    assert os.fstat(handle).st_nlink == 0
    assert not os.get_inheritable(handle)
    assert os.fstat(handle).st_size == 3 * counters.SLOT_BYTES


def test_a_board_for_no_ranks_can_be_made():
    made = counters.create(0)
    try:
        SharedCounters(made, 0).clear()
    finally:
        os.close(made)


def test_phases_are_in_the_order_of_a_run():
    assert counters.STARTING < counters.RUNNING < counters.RETURNED < counters.FINISHED
    assert counters.STARTING == 0, "a cleared slot says that its rank is starting"
