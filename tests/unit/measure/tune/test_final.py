"""Which settings meet again side by side, how often, and which one of them is best."""

import itertools
import random
from dataclasses import replace

import pytest

from loader_facts import facts_of
from paceline.launch.probe.loader_commands import LoaderSetting
from paceline.measure.tune import final, search
from paceline.measure.tune.measured import Measured

WRITTEN = LoaderSetting(0, 0, False, 2)
FACTS = facts_of(WRITTEN)
ONE, TWO, THREE, FOUR = (search.with_workers(WRITTEN, count) for count in (1, 2, 3, 4))


def decided(seconds, *, searched=None):
    """Let the finalists take turns until nothing is asked for.

    ``seconds`` are those per batch of each setting, a function of the number of the window;
    ``searched`` those in the search, where they differ.
    """
    first = searched or {setting: of_window(0) for setting, of_window in seconds.items()}
    measured = Measured(settings={setting: [[first[setting]]] * 2 for setting in seconds})
    order = []
    for number in range(200):
        setting = final.next_setting(FACTS, measured)
        if setting is None:
            return measured, order
        order.append(setting)
        measured.final.setdefault(setting, []).append([seconds[setting](number)])
    raise AssertionError("the finalists do not end")


def steady(value):
    return lambda number: value


def best(seconds, **values):
    measured, _ = decided(seconds, **values)
    return final.best_of(FACTS, measured)


def test_finalists_take_turns_in_alternating_order():
    _, order = decided({WRITTEN: steady(0.1), TWO: steady(0.1), ONE: steady(0.1)})
    assert order[:9] == [WRITTEN, TWO, ONE, ONE, TWO, WRITTEN, WRITTEN, TWO, ONE]
    assert len(order) == 3 * final.ROUNDS


def test_one_thread_meets_the_script_even_where_its_best_window_is_slower():
    """Two threads are fast while nothing else uses the CPUs, which is rare."""
    one_thread = replace(WRITTEN, threads=1)

    def two_threads(number):
        return 0.1 if number // 2 % 4 == 0 else 2.0

    seconds = {WRITTEN: two_threads, one_thread: steady(0.2)}
    measured, _ = decided(seconds, searched={WRITTEN: 0.1, one_thread: 0.2})
    assert final.best_of(FACTS, measured) == one_thread
    assert measured.ratio(WRITTEN, one_thread).low < 1
    assert final.speed_up(FACTS, one_thread, measured).low > 1  # over all rounds together


def test_a_cheaper_setting_has_to_be_proven_too():
    """2 workers are faster in every round; 1 worker is as fast as they are, but not in all."""

    def now_and_then(number):
        return 0.101 if number // 3 % 3 else 0.12

    seconds = {WRITTEN: steady(0.11), ONE: now_and_then, TWO: steady(0.1)}
    measured, _ = decided(seconds)
    assert measured.ratio(ONE, TWO).value <= 1.02
    assert final.best_of(FACTS, measured) == TWO


def test_a_script_without_rivals_needs_no_final():
    assert decided({WRITTEN: steady(0.1), TWO: steady(0.2)})[1] == []


def test_the_scripts_own_settings_meet_the_fastest_however_slow_they_are():
    measured, _ = decided({WRITTEN: steady(1.0), ONE: steady(0.2), TWO: steady(0.1)})
    assert set(measured.final) == {WRITTEN, TWO}


def test_what_is_proven_to_be_slower_is_dropped():
    measured, _ = decided({WRITTEN: steady(0.2), ONE: steady(0.12), TWO: steady(0.1)})
    assert measured.num_rounds(ONE) == 3
    assert measured.num_rounds(TWO) == measured.num_rounds(WRITTEN) == final.ROUNDS


def test_luck_in_the_search_does_not_count():
    seconds = {WRITTEN: steady(0.2), ONE: steady(0.12), TWO: steady(0.1)}
    assert best(seconds, searched={WRITTEN: 0.2, ONE: 0.09, TWO: 0.1}) == TWO


def test_a_program_that_slows_down_some_rounds_slows_down_all_settings():
    """The noise is four times the difference, and each round has its own."""
    source = random.Random(0)
    noise = [source.uniform(1.0, 1.5) for _ in range(200)]

    def beside(value):
        return lambda number: value * noise[number // 2]

    assert best({WRITTEN: beside(0.11), TWO: beside(0.1)}) == TWO


def test_the_cheapest_of_equally_fast_settings_is_best():
    seconds = {WRITTEN: steady(0.2), ONE: steady(0.101), TWO: steady(0.1), FOUR: steady(0.1)}
    assert best(seconds) == ONE


def test_a_setting_that_is_a_little_slower_is_not_equally_fast():
    assert best({WRITTEN: steady(0.2), ONE: steady(0.104), TWO: steady(0.1)}) == TWO


@pytest.mark.parametrize(("gain", "expected"), [(1.02, WRITTEN), (1.04, TWO)])
def test_a_change_has_to_be_worth_it(gain, expected):
    assert best({WRITTEN: steady(0.1 * gain), TWO: steady(0.1)}) == expected


def now_and_then(of_odd_rounds):
    """2 workers are twice as fast in every other round, and in the others something else."""
    return {WRITTEN: steady(0.1), TWO: lambda number: of_odd_rounds if number // 2 % 2 else 0.05}


def test_what_is_not_decided_is_measured_more_often():
    measured, _ = decided(now_and_then(0.15))
    assert measured.num_rounds(TWO) == final.MOST_ROUNDS
    assert final.best_of(FACTS, measured) == WRITTEN  # nothing is proven


def test_what_is_decided_is_not():
    measured, _ = decided(now_and_then(0.09))
    assert measured.num_rounds(TWO) == final.ROUNDS
    assert final.best_of(FACTS, measured) == TWO


def test_a_finalist_that_stops_working_is_out():
    measured, _ = decided({WRITTEN: steady(0.2), ONE: steady(0.11), TWO: steady(0.1)})
    measured.failures[TWO] = "too few batches in 8 s"
    assert final.best_of(FACTS, measured) == ONE


def test_without_time_for_a_final_the_search_decides():
    measured = Measured(settings={WRITTEN: [[0.1] * 5] * 2, TWO: [[0.05] * 5] * 2})
    assert final.best_of(FACTS, measured) == TWO


def test_noise_in_the_search_proves_nothing():
    noise = [[0.05, 0.1, 0.2], [0.1, 0.04, 0.3]]
    measured = Measured(settings={WRITTEN: noise, TWO: [[0.09, 0.2, 0.04], [0.08, 0.1, 0.3]]})
    assert final.best_of(FACTS, measured) == WRITTEN


def test_at_most_four_settings_meet_the_scripts_own():
    settings = [replace(TWO, prefetch_factor=ahead) for ahead in range(2, 9)]
    seconds = dict(zip(settings, itertools.count(100), strict=False))
    measured = Measured(settings={s: [[value]] for s, value in {WRITTEN: 200, **seconds}.items()})
    assert final.finalists(FACTS, measured) == [WRITTEN, *settings[:4]]
