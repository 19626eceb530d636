"""Choose which loader settings are tried, in which order, and which one is best. Pure.

The script's own settings come first, beside the same with one thread: threads of the rank wait for
each other in every operation, and that becomes slow when anything else uses their CPUs. Then the
workers: none, 1, 2, 4 and so on to the number of CPUs, until more of them are not faster or the
loop is as fast as on a batch in memory, and the numbers between. All of these are measured twice,
since one window may have been a bad one. Then come single changes of the best: batches read ahead,
pinned memory, threads. The fastest few are measured again in turn, and what is clearly slower is
dropped. The best and the script's own are measured until it is decided which one is faster.

The sharing strategy stays: with ``file_system`` a rank that is ended in the middle of its training
leaves torch's ``torch_shm_manager`` processes behind, and it was not faster where it was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting
from paceline.measure import intervals
from paceline.measure.intervals import Blocks, Interval, flat

FIRST_ROUNDS = 2  # windows of the script's settings, before others are tried
ROUNDS = 3  # windows of each of the fastest settings
MOST_ROUNDS = 8  # of the best and of the script's, while it is not decided which one is faster
_MOST_FINALISTS = 3
_DOUBTFUL = 3.0  # slower than this no other program makes a setting
_NEAR = 1.5  # a setting that takes this much longer than the fastest is not measured again
_BEHIND = 1.05  # nor one that is proven to take this much longer, with two windows or more
_EQUAL = 1.02  # settings that are nearer than this are equally fast: the cheapest of them is best
_GAIN = 1.03  # a change is worth it if it is faster by this
_KEEPS_UP = 1.03  # of the time that a step takes on a batch in memory
SMALL_SHARE = 0.05  # of a step: waiting for data below this is not worth a change
_SHM_SHARE = 0.5  # of the free shared memory, which the script and NCCL use too


@dataclass(frozen=True)
class Limits:
    """What a rank's loader may use of this machine.

    Attributes:
        cpus: CPUs of each rank.
        shm_bytes: Free bytes of shared memory of each rank; None if it is unknown.
    """

    cpus: int
    shm_bytes: int | None = None


@dataclass
class Measured:
    """What was measured so far.

    Attributes:
        memory: Seconds per batch where the loop gets the same batch again and again, by window, for
            each number of threads.
        settings: Seconds per batch of each setting, by window.
        failures: Why settings do not work.
    """

    memory: dict[int, list[list[float]]] = field(default_factory=dict)
    settings: dict[LoaderSetting, list[list[float]]] = field(default_factory=dict)
    failures: dict[LoaderSetting, str] = field(default_factory=dict)

    def windows(self, setting: LoaderSetting) -> int:
        """Return how often a setting was measured."""
        return len(self.settings.get(setting, ()))

    def median(self, setting: LoaderSetting) -> float:
        """Return the median of a setting's seconds per batch."""
        return statistics.median(flat(self.settings[setting]))

    def seconds(self, setting: LoaderSetting) -> float:
        """Return a setting's seconds per batch in its best window.

        Other programs only ever slow a window down. The search goes by the best one, so that a bad
        one does not end it; what is reported is the median of all.
        """
        return min(statistics.median(window) for window in self.settings[setting])

    @property
    def fastest(self) -> LoaderSetting:
        """The setting with the best window."""
        return min(self.settings, key=self.seconds)

    @property
    def keeps_up(self) -> bool:
        """Whether the fastest setting is as fast as a batch in memory."""
        windows = self.memory.get(self.fastest.threads)
        if not windows:
            return False
        least = min(statistics.median(window) for window in windows)
        return self.seconds(self.fastest) <= _KEEPS_UP * least


def most_workers(facts: LoaderFacts, limits: Limits) -> tuple[int, str]:
    """Return the largest number of workers of a rank, and what limits it."""
    cpus = max(1, limits.cpus)
    if limits.shm_bytes is None or not facts.batch_bytes:
        return cpus, "CPUs"
    # Workers read two batches ahead by default, and hold the one that they read.
    by_memory = int(_SHM_SHARE * limits.shm_bytes / (3 * facts.batch_bytes))
    return (by_memory, "/dev/shm") if by_memory < cpus else (cpus, "CPUs")


def next_setting(facts: LoaderFacts, limits: Limits, measured: Measured) -> LoaderSetting | None:
    """Return the setting to measure next; None if nothing is left to learn."""
    measured_or_failed = set(measured.settings) | set(measured.failures)
    for setting in _in_turn(first_settings(facts), measured):
        if setting not in measured.failures and measured.windows(setting) < FIRST_ROUNDS:
            return setting
    for setting in _by_workers(facts, limits, measured):
        if setting not in measured_or_failed:
            return setting
    doubtful = _measured_once(measured)
    if doubtful is not None:
        return doubtful
    if not measured.keeps_up:
        for setting in _variants(measured.fastest, facts, limits):
            if setting not in measured_or_failed:
                return setting
    return _finalist(measured) or _undecided(facts, measured)


def first_settings(facts: LoaderFacts) -> list[LoaderSetting]:
    """Return the script's settings, and the same with one thread."""
    if facts.setting.threads == 1:
        return [facts.setting]
    return [facts.setting, replace(facts.setting, threads=1)]


def _in_turn(settings: Sequence[LoaderSetting], measured: Measured) -> list[LoaderSetting]:
    return sorted(settings, key=measured.windows)


def starting_point(facts: LoaderFacts, measured: Measured) -> LoaderSetting:
    """Return the script's settings, or the same with one thread if that is clearly faster."""
    written, *others = first_settings(facts)
    for other in others:
        if measured.windows(other) and _GAIN * measured.seconds(other) < measured.seconds(written):
            return other
    return written


def _measured_once(measured: Measured) -> LoaderSetting | None:
    """Return a setting whose only window may have been a bad one."""
    limit = _DOUBTFUL * measured.seconds(measured.fastest)
    for setting, blocks in measured.settings.items():
        if len(blocks) < 2 and measured.seconds(setting) <= limit:
            return setting
    return None


def _by_workers(facts: LoaderFacts, limits: Limits, measured: Measured) -> Iterator[LoaderSetting]:
    """Yield settings that differ in the number of workers, until more of them are no faster."""
    most, _ = most_workers(facts, limits)
    least = 0
    if facts.is_stream:
        # Each worker reads a whole stream unless the dataset divides it. If the script has workers,
        # it does; otherwise nobody knows, and more workers would repeat samples.
        least, most = (1, most) if facts.setting.num_workers else (0, 0)
    ladder = [count for count in _ladder(most) if count >= least]
    start = starting_point(facts, measured)
    for place, count in enumerate(ladder):
        if _has_peaked([with_workers(start, lower) for lower in ladder[:place]], measured):
            break
        yield with_workers(start, count)
    fastest = measured.fastest.num_workers
    lower = max((count for count in ladder if count < fastest), default=fastest)
    upper = min((count for count in ladder if count > fastest), default=fastest)
    if fastest - lower > 1:
        yield with_workers(start, (lower + fastest) // 2)
    if upper - fastest > 1 and not measured.keeps_up:
        yield with_workers(start, (upper + fastest) // 2)


def _ladder(most: int) -> list[int]:
    """Return the numbers of workers that are tried first."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return sorted({0, most, *powers})


def _has_peaked(lower: Sequence[LoaderSetting], measured: Measured) -> bool:
    """Return whether more workers than these are not worth a try."""
    if measured.keeps_up:
        return True
    seconds = [measured.seconds(setting) for setting in lower if setting in measured.settings]
    # With one worker instead of none, handing batches over may cost more than it saves.
    return len(seconds) > 3 and min(seconds[-2:]) > min(seconds[:-2]) / _GAIN


def with_workers(setting: LoaderSetting, count: int) -> LoaderSetting:
    """Return settings with another number of workers."""
    ahead = (setting.prefetch_factor or 2) if count else 0
    return replace(setting, num_workers=count, prefetch_factor=ahead)


def _variants(
    setting: LoaderSetting, facts: LoaderFacts, limits: Limits
) -> Iterator[LoaderSetting]:
    """Yield single changes of a setting."""
    workers = setting.num_workers
    if facts.on_gpu and not setting.pin_memory:
        yield replace(setting, pin_memory=True)
    threads = max(1, limits.cpus - workers)
    if workers and threads != setting.threads and threads <= facts.setting.threads:
        yield replace(setting, threads=threads)
    ahead = 2 * facts.setting.prefetch_factor or 4
    if workers and setting.prefetch_factor < ahead and _fits(workers * (ahead + 1), facts, limits):
        yield replace(setting, prefetch_factor=ahead)


def _fits(num_batches: int, facts: LoaderFacts, limits: Limits) -> bool:
    """Return whether shared memory can hold a number of batches."""
    if limits.shm_bytes is None:
        return True
    return num_batches * facts.batch_bytes <= _SHM_SHARE * limits.shm_bytes


def _finalist(measured: Measured) -> LoaderSetting | None:
    """Return which of the fastest settings is measured again; None if all were often enough.

    One window may have had luck, or bad luck with another program on the same CPUs. What is said to
    be best has been measured several times, in turn with those that come next.
    """
    fastest = measured.fastest
    near = [s for s in measured.settings if not _is_behind(s, fastest, measured)]
    finalists = sorted(near, key=measured.seconds)[:_MOST_FINALISTS]
    fewest = min(finalists, key=lambda setting: len(measured.settings[setting]))
    return fewest if len(measured.settings[fewest]) < ROUNDS else None


def _is_behind(setting: LoaderSetting, fastest: LoaderSetting, measured: Measured) -> bool:
    """Return whether a setting is so much slower than the fastest that it cannot be best."""
    if measured.seconds(setting) > _NEAR * measured.seconds(fastest):
        return True
    blocks, least = measured.settings[setting], measured.settings[fastest]
    if setting == fastest or min(len(blocks), len(least)) < 2:
        return False
    return intervals.ratio(blocks, least).low > _BEHIND


def _undecided(facts: LoaderFacts, measured: Measured) -> LoaderSetting | None:
    """Return what to measure again to decide whether the best setting is faster than the script's.

    Returns:
        The best or the script's, whichever was measured less often; None if it is decided, or if
        more windows would not decide it.
    """
    written, best = facts.setting, _cheapest_of_the_fastest(facts, measured)
    if best == written:
        return None
    fewest = min((best, written), key=measured.windows)
    if measured.windows(fewest) < ROUNDS:
        return fewest
    speed_up = intervals.ratio(measured.settings[written], measured.settings[best])
    if speed_up.low > 1 or speed_up.high < _GAIN:
        return None
    return fewest if measured.windows(fewest) < MOST_ROUNDS else None


def best_of(facts: LoaderFacts, measured: Measured) -> LoaderSetting:
    """Return the cheapest of the settings that are as fast as the fastest.

    The script's own settings are the cheapest; they are best unless another is proven to be faster.
    Fewer workers are cheaper than more: they need less memory, and leave CPUs to others. A setting
    that was measured once is best only if all were.
    """
    best = _cheapest_of_the_fastest(facts, measured)
    written = measured.settings[facts.setting]
    speed_up = intervals.ratio(written, measured.settings[best])
    return best if speed_up.low > 1 and speed_up.value >= _GAIN else facts.setting


def _cheapest_of_the_fastest(facts: LoaderFacts, measured: Measured) -> LoaderSetting:
    confirmed = [s for s, blocks in measured.settings.items() if len(blocks) > 1]
    candidates = confirmed or list(measured.settings)
    fastest = min(candidates, key=measured.median)
    equal = [s for s in candidates if _is_equal(s, fastest, measured)]
    return min(equal, key=lambda setting: _costs(setting, facts.setting))


def _is_equal(setting: LoaderSetting, fastest: LoaderSetting, measured: Measured) -> bool:
    """Return whether a setting is about as fast as the fastest."""
    ratio = measured.median(setting) / measured.median(fastest)
    if ratio > _BEHIND:
        return False
    settings = measured.settings
    return ratio <= _EQUAL or intervals.ratio(settings[setting], settings[fastest]).low <= 1


def _costs(setting: LoaderSetting, written: LoaderSetting) -> tuple[int, ...]:
    changes = [
        setting.threads != written.threads,
        setting.pin_memory != written.pin_memory,
    ]
    return (
        int(setting != written),
        setting.num_workers,
        sum(changes),
        setting.prefetch_factor,
    )


def waiting_share(memory: Blocks, loading: Blocks) -> Interval:
    """Return the share of a step in which the loop waits for data.

    Args:
        memory: Seconds per batch where the loop gets the same batch again and again.
        loading: Seconds per batch with the loader.
    """
    ratio = intervals.ratio(memory, loading)
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


def waiting(setting: LoaderSetting, measured: Measured) -> Interval | None:
    """Return the share of a step that waits for data with a setting; None if it is unknown."""
    memory = measured.memory.get(setting.threads)
    return waiting_share(memory, measured.settings[setting]) if memory else None


def is_worth_tuning(share: Interval) -> bool:
    """Return whether data may be what holds the loop back."""
    return share.value >= SMALL_SHARE
