"""Choose which settings are measured again, side by side, and which one of them is best. Pure.

What was fastest in the search had luck: of several settings that are equally fast, the one with the
luckiest window. The fastest few and the script's own therefore meet again, in rounds in which they
take turns, every other round in the opposite order. Two of them are compared round by round, so
that a program that slows down some rounds slows down both. What is proven to be slower is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.launch.probe.loader_commands import LoaderFacts, LoaderSetting
from paceline.measure.intervals import Interval
from paceline.measure.tune.measured import LEAST_ROUNDS, Measured
from paceline.measure.tune.search import first_settings

ROUNDS = 5
MOST_ROUNDS = 9  # while it is not decided whether any setting is faster than the script's
_MOST_FINALISTS = 4  # and the script's own
_NEAR = 1.5  # of the fastest in the search: what takes longer does not take part
_NEAR_WITH_ONE_THREAD = 3.0
_BEHIND = 1.05  # a finalist that is proven to take this much longer is dropped
_EQUAL = 1.02  # settings that are nearer than this are equally fast: the cheapest of them is best
_GAIN = 1.03  # a change is worth it if it is faster by this


def finalists(facts: LoaderFacts, measured: Measured) -> list[LoaderSetting]:
    """Return the script's settings and the fastest others of the search, the script's first.

    The same settings with one thread take part even if they were slower: several threads are fast
    in a window in which they have the CPUs for themselves, and many times slower in the others.
    """
    others = [
        setting
        for setting in measured.settings
        if setting != facts.setting and setting not in measured.failures
    ]
    least = measured.seconds(measured.fastest)
    near = [setting for setting in others if measured.seconds(setting) <= _NEAR * least]
    one_thread = [
        setting
        for setting in first_settings(facts)
        if setting in others and measured.seconds(setting) <= _NEAR_WITH_ONE_THREAD * least
    ]
    in_order = [facts.setting, *one_thread, *sorted(near, key=measured.seconds)]
    return list(dict.fromkeys(in_order))[: _MOST_FINALISTS + 1]


def next_setting(facts: LoaderFacts, measured: Measured) -> LoaderSetting | None:
    """Return the finalist to measure next; None if it is decided which one is best."""
    remaining = _remaining(facts, finalists(facts, measured), measured)
    if len(remaining) == 1:
        return None
    done = min(measured.num_rounds(setting) for setting in remaining)
    if done >= ROUNDS and (done >= MOST_ROUNDS or _is_decided(facts, measured)):
        return None
    in_order = remaining if done % 2 == 0 else remaining[::-1]
    return next(setting for setting in in_order if measured.num_rounds(setting) == done)


def _remaining(
    facts: LoaderFacts, candidates: Sequence[LoaderSetting], measured: Measured
) -> list[LoaderSetting]:
    """Return the finalists that may be best, and the script's settings, which all meet."""
    if min(measured.num_rounds(setting) for setting in candidates) < LEAST_ROUNDS:
        return list(candidates)
    fastest = _fastest(facts, candidates, measured)
    return [
        setting
        for setting in candidates
        if setting in (facts.setting, fastest) or measured.ratio(setting, fastest).low <= _BEHIND
    ]


def _fastest(
    facts: LoaderFacts, candidates: Sequence[LoaderSetting], measured: Measured
) -> LoaderSetting:
    """Return the fastest setting, each measured by the script's own."""
    return min(candidates, key=lambda setting: measured.ratio(setting, facts.setting).value)


def _is_decided(facts: LoaderFacts, measured: Measured) -> bool:
    """Return whether the fastest setting is proven to be faster than the script's, or is not."""
    fastest = _fastest(facts, finalists(facts, measured), measured)
    is_gain = measured.ratio(facts.setting, fastest).value >= _GAIN
    return not is_gain or speed_up(facts, fastest, measured).low > 1


def speed_up(facts: LoaderFacts, setting: LoaderSetting, measured: Measured) -> Interval:
    """Return how many times as fast as the script's own settings another one is.

    The median over the rounds, unless only the total of all rounds shows that it is faster.
    """
    in_most_rounds = measured.ratio(facts.setting, setting)
    in_total = measured.ratio_of_totals(facts.setting, setting)
    return in_total if in_most_rounds.low <= 1 < in_total.low else in_most_rounds


def best_of(facts: LoaderFacts, measured: Measured) -> LoaderSetting:
    """Return the cheapest of the settings that are as fast as the fastest.

    The script's own settings are the cheapest; they are best unless another is proven to be faster.
    Fewer workers are cheaper than more: they need less memory, and leave CPUs to others.
    """
    candidates = finalists(facts, measured)
    fastest = _fastest(facts, candidates, measured)
    is_gain = measured.ratio(facts.setting, fastest).value >= _GAIN
    if not is_gain or speed_up(facts, fastest, measured).low <= 1:
        return facts.setting
    equal = [
        setting
        for setting in candidates
        if measured.ratio(setting, fastest).value <= _EQUAL
        and speed_up(facts, setting, measured).low > 1
    ]
    return min(equal, key=lambda setting: _costs(setting, facts.setting))


def _costs(setting: LoaderSetting, written: LoaderSetting) -> tuple[int, ...]:
    changes = [setting.threads != written.threads, setting.pin_memory != written.pin_memory]
    return (int(setting != written), setting.num_workers, sum(changes), setting.prefetch_factor)
