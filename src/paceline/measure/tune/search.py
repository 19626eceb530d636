"""Choose which loader settings the search tries, and in which order. Pure.

The script's own settings come first, beside the same with one thread: threads of the rank wait for
each other in every operation, and that becomes slow when anything else uses their CPUs. Then the
workers: none, 1, 2, 4 and so on to the number of CPUs, or beyond it while workers wait and leave
CPUs idle, until more of them are not faster or the loop is as fast as on a batch in memory, and the
numbers between. Workers and threads share the
CPUs, so the rank has only as many threads as workers leave. From the fastest of these the search
continues with settings that differ from it in one thing, as long as one of them is faster: threads,
batches read ahead, pinned memory, workers. What may be best is measured twice, since a window may
have been a bad one. ``final`` decides among the fastest.

The sharing strategy stays: with ``file_system`` a rank that is ended in the middle of its training
leaves torch's ``torch_shm_manager`` processes behind, and it was not faster where it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from paceline.launch.monitor import bottleneck
from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting
from paceline.measure.intervals import Interval
from paceline.measure.tune.measured import Measured, TrialLimits, waiting_share

FIRST_WINDOWS = 2  # of the script's settings, before others are tried
MOST_FIRST_WINDOWS = 5  # of them, while it is uncertain whether they wait for data
_WIDEST = 0.5  # share of a step; an interval that is wider says nothing
_DOUBTFUL = 1.5  # what is slower than this beside the fastest is not measured again
_GAIN = 1.03  # a step of the search is one if it is faster by this
_BUSY = 0.9  # share of the CPUs; where fewer are busy, workers wait for something else
MOST_WAITING = 16  # workers of a rank, more than CPUs, that wait for storage
_SHM_SHARE = 0.5  # of the free shared memory, which the script and NCCL use too


def most_workers(facts: LoaderFacts, limits: TrialLimits, measured: Measured) -> tuple[int, str]:
    """Return the largest number of workers of a rank that is tried, and what limits it.

    There are as many as CPUs; twice as many, and so on, as long as these workers leave CPUs idle
    because they wait for storage or a network.
    """
    most, limit = max(1, limits.cpus), "CPUs"
    while most < MOST_WAITING and measured.busy_share(most) < _BUSY:
        most, limit = 2 * most, "paceline tune"
    if limits.shm_bytes is None or not facts.batch_bytes:
        return most, limit
    # Workers read two batches ahead by default, and hold the one that they read.
    by_memory = int(_SHM_SHARE * limits.shm_bytes / (3 * facts.batch_bytes))
    return (by_memory, "/dev/shm") if by_memory < most else (most, limit)


def next_setting(
    facts: LoaderFacts, limits: TrialLimits, measured: Measured
) -> LoaderSetting | None:
    """Return the setting to try next; None if the search is over."""
    share = waiting(facts.setting, measured)
    is_doubtful = share is not None and not is_certain(share)
    num_windows = MOST_FIRST_WINDOWS if is_doubtful else FIRST_WINDOWS
    # In turn: what slows the machine down for a while slows down both.
    for setting in sorted(first_settings(facts), key=measured.num_windows):
        if setting not in measured.failures and measured.num_windows(setting) < num_windows:
            return setting
    new = _first_new(_by_workers(facts, limits, measured), measured)
    if new is not None:
        return new
    doubtful = _measured_once(measured)
    if doubtful is not None or measured.keeps_up:
        return doubtful
    return _first_new(_neighbours(facts, limits, measured), measured)


def _first_new(settings: Iterator[LoaderSetting], measured: Measured) -> LoaderSetting | None:
    tried = measured.settings.keys() | measured.failures.keys()
    return next((setting for setting in settings if setting not in tried), None)


def first_settings(facts: LoaderFacts) -> list[LoaderSetting]:
    """Return the script's settings, and the same with one thread."""
    if facts.setting.threads == 1:
        return [facts.setting]
    return [facts.setting, replace(facts.setting, threads=1)]


def starting_point(facts: LoaderFacts, measured: Measured) -> LoaderSetting:
    """Return the script's settings, or the same with one thread if that is clearly faster."""
    written, *others = first_settings(facts)
    for other in others:
        if other in measured.settings and _GAIN * measured.seconds(other) < measured.seconds(
            written
        ):
            return other
    return written


def may_gain_from_threads(facts: LoaderFacts, measured: Measured) -> bool:
    """Return whether one thread may be faster than the script's: in its best window, or in most."""
    if starting_point(facts, measured) != facts.setting:
        return True
    written, *others = first_settings(facts)
    return any(
        other in measured.settings and measured.ratio(written, other).value > _GAIN
        for other in others
    )


def _measured_once(measured: Measured) -> LoaderSetting | None:
    """Return a setting whose only window may have been a bad one."""
    limit = _DOUBTFUL * measured.seconds(measured.fastest)
    for setting in measured.settings:
        is_new = setting not in measured.failures and measured.num_windows(setting) < 2
        if is_new and measured.seconds(setting) <= limit:
            return setting
    return None


def _by_workers(
    facts: LoaderFacts, limits: TrialLimits, measured: Measured
) -> Iterator[LoaderSetting]:
    """Yield settings that differ in the number of workers, until more of them are no faster."""
    ladder = _ladder(facts, limits, measured)
    at = _beside_threads(starting_point(facts, measured), facts, limits)
    for place, count in enumerate(ladder):
        if _has_peaked([at(lower) for lower in ladder[:place]], measured):
            break
        yield at(count)
    fastest = measured.fastest.num_workers
    lower, upper = _rungs_beside(fastest, ladder)
    if fastest - lower > 1:
        yield at((lower + fastest) // 2)
    if upper - fastest > 1 and not measured.keeps_up:
        yield at((upper + fastest) // 2)


def _beside_threads(
    start: LoaderSetting, facts: LoaderFacts, limits: TrialLimits
) -> Callable[[int], LoaderSetting]:
    """Return which setting has a number of workers and the threads that they leave CPUs for."""

    def at(count: int) -> LoaderSetting:
        setting = with_workers(start, count)
        if not count or facts.on_gpu:
            return setting
        return replace(setting, threads=min(start.threads, max(1, limits.cpus - count)))

    return at


def _ladder(facts: LoaderFacts, limits: TrialLimits, measured: Measured) -> list[int]:
    """Return the numbers of workers that are tried first."""
    most, _ = most_workers(facts, limits, measured)
    if facts.is_stream and not facts.setting.num_workers:
        # Each worker reads a whole stream unless the dataset divides it. If the script has workers,
        # it does; otherwise nobody knows, and more workers would repeat samples.
        return [0]
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    ladder = sorted({0, most, *powers})
    return ladder[1:] if facts.is_stream else ladder


def _rungs_beside(count: int, ladder: Sequence[int]) -> tuple[int, int]:
    """Return the next lower and the next higher number of workers; ``count`` where none is."""
    lower = max((rung for rung in ladder if rung < count), default=count)
    upper = min((rung for rung in ladder if rung > count), default=count)
    return lower, upper


def _has_peaked(lower: Sequence[LoaderSetting], measured: Measured) -> bool:
    """Return whether more workers than these are not worth a try."""
    if measured.keeps_up:
        return True
    seconds = [measured.seconds(setting) for setting in lower if setting in measured.settings]
    # With one worker instead of none, handing batches over may cost more than it saves. Two rungs
    # in a row must bring nothing, since one may have had a bad window.
    return len(seconds) > 3 and min(seconds[-2:]) > min(seconds[:-2]) / _GAIN


def with_workers(setting: LoaderSetting, count: int) -> LoaderSetting:
    """Return settings with another number of workers."""
    ahead = (setting.prefetch_factor or 2) if count else 0
    return replace(setting, num_workers=count, prefetch_factor=ahead)


def _neighbours(
    facts: LoaderFacts, limits: TrialLimits, measured: Measured
) -> Iterator[LoaderSetting]:
    """Yield settings that differ from the fastest one in one thing."""
    setting = measured.fastest
    workers = setting.num_workers
    # Pinned memory speeds up copies to a GPU, and is slow to allocate.
    if facts.on_gpu and not setting.pin_memory:
        yield replace(setting, pin_memory=True)
    for threads in (1, limits.cpus - workers, facts.setting.threads):
        if 0 < threads <= facts.setting.threads and not facts.on_gpu:
            yield replace(setting, threads=threads)
    ahead = 2 * facts.setting.prefetch_factor or 4
    if workers and setting.prefetch_factor < ahead and _fits(workers * (ahead + 1), facts, limits):
        yield replace(setting, prefetch_factor=ahead)
    for count in _rungs_beside(workers, _ladder(facts, limits, measured)):
        other = with_workers(setting, count)
        if _fits(count * (other.prefetch_factor + 1), facts, limits):
            yield other


def _fits(num_batches: int, facts: LoaderFacts, limits: TrialLimits) -> bool:
    """Return whether shared memory can hold a number of batches."""
    if limits.shm_bytes is None:
        return True
    return num_batches * facts.batch_bytes <= _SHM_SHARE * limits.shm_bytes


def waiting(setting: LoaderSetting, measured: Measured) -> Interval | None:
    """Return the share of a step that waits for data with a setting; None if it is unknown."""
    memory = measured.memory.get(setting.threads)
    if not memory or setting not in measured.settings:
        return None
    return waiting_share(memory, measured.windows(setting))


def is_worth_tuning(share: Interval) -> bool:
    """Return whether data may be what holds the loop back."""
    return share.value >= bottleneck.SMALL_DATA_SHARE


def data_is_bottleneck(facts: LoaderFacts, measured: Measured) -> bool | None:
    """Return whether the loop waits for data with the script's settings; None if it is unknown."""
    share = waiting(facts.setting, measured)
    if share is None:
        return None
    if is_worth_tuning(share):
        return True
    return False if is_certain(share) else None


def is_certain(share: Interval) -> bool:
    """Return whether a share is ground for an end of the search.

    A batch in memory that is slower than loading was slowed down by something else.
    """
    is_possible = share.value > -bottleneck.SMALL_DATA_SHARE
    return is_possible and share.high - share.low <= _WIDEST
