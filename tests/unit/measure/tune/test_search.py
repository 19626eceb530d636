"""Which loader settings are tried, on machines whose speed is a formula, and which one is best."""

from dataclasses import replace

import pytest

from loader_facts import facts_of
from paceline.launch.probe.loader_commands import LoaderSetting
from paceline.measure.intervals import Interval
from paceline.measure.tune import final, search
from paceline.measure.tune.measured import Measured, TrialLimits, waiting_share

NO_WORKERS = LoaderSetting(0, 0, False, 4)
ONE_THREAD = replace(NO_WORKERS, threads=1)


def facts(setting=NO_WORKERS, **values):
    return facts_of(setting, **values)


def search_all(
    of_rank,
    limits,
    seconds,
    *,
    memory=0.01,
    fails=lambda setting: False,
    busy=lambda setting: 1.0,
):
    """Measure what the search and then the finalists ask for, until nothing is asked for."""
    measured = Measured(memory={threads: [[memory] * 3] * 2 for threads in range(1, 65)})
    for _ in range(100):
        setting = search.next_setting(of_rank, limits, measured)
        if setting is None:
            return decide(of_rank, measured, seconds)
        if fails(setting):
            measured.failures[setting] = "it fails"
        else:
            measured.settings.setdefault(setting, []).append([seconds(setting)] * 3)
            measured.busy[setting] = busy(setting)
    raise AssertionError("the search does not end")


def decide(of_rank, measured, seconds):
    """Let the finalists take turns, until nothing is asked for."""
    for _ in range(100):
        setting = final.next_setting(of_rank, measured)
        if setting is None:
            return measured
        measured.final.setdefault(setting, []).append([seconds(setting)] * 3)
    raise AssertionError("the finalists do not end")


def reading(read, *, step=0.01, hand_over=0.0, cpus=8):
    """Seconds per batch of a machine: workers read in parallel, and each batch is handed over."""

    def seconds(setting):
        if setting.num_workers == 0:
            return step + read
        return max(step + hand_over, read / min(cpus, setting.num_workers))

    return seconds


@pytest.mark.parametrize(
    ("read", "expected"), [(0.015, 2), (0.028, 3), (0.04, 4), (0.055, 6), (0.5, 8)]
)
def test_as_many_workers_as_the_step_needs(read, expected):
    measured = search_all(facts(), TrialLimits(8), reading(read))
    assert final.best_of(facts(), measured).num_workers == expected


def waiting_for(storage_s):
    """Share of two busy CPUs, of workers that each compute 1 ms for a batch and wait the rest."""
    return lambda setting: min(1.0, max(1, setting.num_workers) * 0.001 / (0.001 + storage_s) / 2)


@pytest.mark.parametrize(("storage_s", "expected"), [(0.1, 11), (0.5, 16), (0.0, 2)])
def test_workers_that_wait_for_storage_may_be_more_than_the_cpus(storage_s, expected):
    cpus = 1000 if storage_s else 2
    seconds = reading(storage_s + 0.001 if storage_s else 0.05, cpus=cpus)
    measured = search_all(facts(), TrialLimits(2), seconds, busy=waiting_for(storage_s))
    assert final.best_of(facts(), measured).num_workers in range(expected - 1, expected + 2)


def test_workers_that_do_not_pay_are_not_best():
    """Tiny samples: handing a batch over costs more than reading it."""
    measured = search_all(facts(), TrialLimits(8), reading(0.001, hand_over=0.004))
    assert final.best_of(facts(), measured) == NO_WORKERS


def test_the_climb_ends_when_more_workers_are_slower():
    def seconds(setting):
        return 0.1 + 0.02 * abs(setting.num_workers - 1)

    measured = search_all(facts(), TrialLimits(64), seconds)
    assert max(setting.num_workers for setting in measured.settings) <= 4
    assert final.best_of(facts(), measured).num_workers == 1


def test_the_climb_ends_when_loading_keeps_up():
    measured = search_all(facts(), TrialLimits(64), reading(0.019))
    assert {setting.num_workers for setting in measured.settings} == {0, 1, 2}


def test_no_more_workers_than_shared_memory_holds_batches():
    limits = TrialLimits(16, shm_bytes=64 << 20)  # as in a container
    large = facts(batch_bytes=4 << 20)
    assert search.most_workers(large, limits, Measured()) == (2, "/dev/shm")
    measured = search_all(large, limits, reading(1.0))
    assert max(setting.num_workers for setting in measured.settings) == 2


def test_shared_memory_limits_the_batches_ahead_too():
    limits = TrialLimits(2, shm_bytes=16 << 20)
    measured = search_all(facts(), limits, reading(1.0))
    assert all(
        setting.num_workers * (setting.prefetch_factor + 1) <= 8 for setting in measured.settings
    )
    assert {setting.prefetch_factor for setting in measured.settings} == {0, 2}


def test_a_stream_without_workers_gets_none():
    stream = facts(is_stream=True)
    measured = search_all(stream, TrialLimits(8), reading(1.0))
    assert {setting.num_workers for setting in measured.settings} == {0}


def test_a_stream_with_workers_keeps_at_least_one():
    two = replace(NO_WORKERS, num_workers=2, prefetch_factor=2)
    measured = search_all(facts(two, is_stream=True), TrialLimits(8), reading(1.0))
    assert {setting.num_workers for setting in measured.settings} >= {1, 2, 4, 8}
    assert 0 not in {setting.num_workers for setting in measured.settings}


def test_pinned_memory_is_tried_only_with_a_gpu():
    on_gpu = facts(on_gpu=True)
    measured = search_all(on_gpu, TrialLimits(4), reading(1.0))
    assert any(setting.pin_memory for setting in measured.settings)
    measured = search_all(facts(), TrialLimits(4), reading(1.0))
    assert not any(setting.pin_memory for setting in measured.settings)


def test_threads_leave_cpus_to_workers_if_that_is_faster():
    def seconds(setting):
        busy = setting.threads + setting.num_workers > 5
        return reading(0.06)(setting) * (1.5 if busy else 1.0)

    measured = search_all(facts(), TrialLimits(4), seconds)
    best = final.best_of(facts(), measured)
    assert (best.num_workers + best.threads) <= 5
    assert best.threads == max(1, 4 - best.num_workers)


def test_one_thread_that_is_faster_stays_for_the_workers():
    """Several threads wait for each other in each operation, where other programs use the CPUs."""

    def seconds(setting):
        return reading(0.06)(setting) + 0.1 * (setting.threads > 1)

    measured = search_all(facts(), TrialLimits(8), seconds)
    assert {setting.num_workers for setting in measured.settings if setting.threads > 1} <= {0, 6}
    best = final.best_of(facts(), measured)
    assert (best.num_workers, best.threads) == (6, 1)


def test_a_setting_that_fails_is_not_asked_for_again():
    measured = search_all(
        facts(), TrialLimits(8), reading(1.0), fails=lambda setting: setting.num_workers > 0
    )
    assert set(measured.settings) == {NO_WORKERS, replace(NO_WORKERS, threads=1)}
    assert final.best_of(facts(), measured) == NO_WORKERS


def test_workers_leave_cpus_for_the_threads_of_the_rank():
    measured = search_all(facts(), TrialLimits(4), reading(1.0))
    assert search.with_workers(NO_WORKERS, 2) not in list(measured.settings)[:5]
    assert replace(search.with_workers(NO_WORKERS, 2), threads=2) in measured.settings


def test_threads_are_left_alone_where_a_gpu_computes():
    measured = search_all(facts(on_gpu=True), TrialLimits(4), reading(1.0))
    assert {setting.threads for setting in measured.settings if setting.num_workers} == {4}


def test_more_workers_are_fastest_only_with_one_thread():
    """Two things have to change together, and each of them alone is slower."""

    def seconds(setting):
        if setting.num_workers == 2 and setting.threads == 1:
            return 0.05
        return 0.1 + 0.02 * setting.num_workers + 0.01 * (setting.threads == 1)

    two_threads = facts(replace(NO_WORKERS, threads=2))
    measured = search_all(two_threads, TrialLimits(2), seconds)
    best = final.best_of(two_threads, measured)
    assert (best.num_workers, best.threads) == (2, 1)


def test_waiting_is_what_a_step_takes_longer_than_on_a_batch_in_memory():
    share = waiting_share([[0.02, 0.02]], [[0.1, 0.1]])
    assert share == Interval(pytest.approx(0.8), pytest.approx(0.8), pytest.approx(0.8))
    assert search.is_worth_tuning(share)


@pytest.mark.parametrize(("loading", "expected"), [(0.0201, False), (0.0205, False), (0.03, True)])
def test_data_below_a_few_percent_of_a_step_is_not_worth_tuning(loading, expected):
    share = waiting_share([[0.02] * 4], [[loading] * 4])
    assert search.is_worth_tuning(share) is expected


@pytest.mark.parametrize(
    "memory",
    [
        [[0.02] * 4] * 2,  # slower than loading, which cannot be
        [[0.0002, 0.01, 0.02], [0.0002, 0.01, 0.02]],  # anything from 0 to 98 % of a step
    ],
)
def test_a_share_that_is_impossible_or_says_nothing_is_measured_again(memory):
    measured = Measured({4: memory}, {NO_WORKERS: [[0.0101] * 4] * 2, ONE_THREAD: [[0.02] * 4] * 2})
    share = search.waiting(NO_WORKERS, measured)
    assert not search.is_certain(share)
    for _ in range(2 * (search.MOST_FIRST_WINDOWS - 2)):
        setting = search.next_setting(facts(), TrialLimits(2), measured)
        assert setting in (NO_WORKERS, ONE_THREAD)
        measured.settings[setting].append([0.0101] * 4)
    measured.memory[4] = [[0.01] * 4] * 4
    assert search.is_certain(search.waiting(NO_WORKERS, measured))


@pytest.mark.parametrize(
    ("windows", "expected"), [([0.1, 0.1], False), ([0.1, 2.0], True), ([0.25, 0.25], True)]
)
def test_threads_are_doubted_if_they_are_slow_in_any_window(windows, expected):
    one_thread = replace(NO_WORKERS, threads=1)
    of_written = [[seconds] * 5 for seconds in windows]
    measured = Measured(settings={NO_WORKERS: of_written, one_thread: [[0.2] * 5] * 2})
    assert search.may_gain_from_threads(facts(), measured) is expected
