"""Decide how many steps at the start of a run are left out of a measurement. Pure.

The first steps allocate memory, connect ranks, fill the page cache and compile. They end where the
times of steps have come down to those of the last third, within three standard deviations from
the median absolute deviation, which single slow steps do not pull along.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

WINDOW = 5  # the median of so many steps is compared, so that one slow step says nothing
_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826  # for normally distributed values
_LEAST_SHARE = 0.02  # of a step; smaller differences are not a warm-up


def slow_steps(times: Sequence[float]) -> int:
    """Return the number of steps at the start that are slower than the last third, at most half."""
    half = len(times) // 2
    if half < WINDOW:
        return 0
    settled = times[-max(WINDOW, len(times) // 3) :]
    median = statistics.median(settled)
    deviation = statistics.median(abs(time - median) for time in settled)
    # A median of five normally distributed values has 0.54 of their standard deviation; the whole
    # of it is allowed, because times of steps have longer tails.
    most = median + max(_SIGMAS * _MAD_TO_SIGMA * deviation, _LEAST_SHARE * median)
    for start in range(half):
        if statistics.median(times[start : start + WINDOW]) <= most:
            return _without_single(times, start, most)
    return half


def _without_single(times: Sequence[float], start: int, most: float) -> int:
    """Return where the steps of a window become usual: its first ones may still be slow."""
    while times[start] > most and start < len(times) // 2:
        start += 1
    return start
