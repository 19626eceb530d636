"""Decide whether the memory of a rank grows with its steps. Pure.

A rank that keeps the tensors of each step, or a list of all that it has seen, is ended by the
kernel hours later. Growth is called steady if the rank has grown in each part of its run alike: a
cache that fills, and an allocator that reaches its size, grow at first and then no more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from paceline.counters import Counters
from paceline.errors import Finding
from paceline.text.wording import size

_MOST_POINTS = 256
_FIRST_SHARE = 0.25  # of the points: caches fill, and the first steps allocate what stays
LEAST_POINTS = 32  # at one every five seconds, more than two and a half minutes
_PARTS = 6  # in each of which a rank that grows steadily has grown
_LEAST_OF_MEAN = 0.4  # each part grows at least by this share of what the parts grow in the mean
_LEAST_BYTES = 128 << 20  # that a rank has grown by
_LEAST_SHARE = 0.1  # of its memory at first, that it has grown by
_AHEAD = 10  # times the steps so far, where the length of a pass over the data is unknown


class MemoryPoint(NamedTuple):
    """The memory of a rank at a step."""

    step: int
    num_bytes: int


class MemoryHistory:
    """The memory of one rank over its steps, at equal distances: twice as far when it is full."""

    def __init__(self) -> None:
        self.points: list[MemoryPoint] = []
        self.latest_bytes = 0
        self._count, self._every = 0, 1

    def add(self, step: int, num_bytes: int) -> None:
        """Keep a value. Without steps, or without a value, there is nothing to keep."""
        if not step or not num_bytes:
            return
        self.latest_bytes = num_bytes
        if self._count % self._every == 0:
            self.points.append(MemoryPoint(step, num_bytes))
        self._count += 1
        if len(self.points) == _MOST_POINTS:
            self.points = self.points[::2]
            self._every *= 2

    def growth(self, count: Counters, available_bytes: Callable[[], int]) -> float:
        """Return by how many bytes a step the memory grows, where that is worth a hint; else 0.

        ``available_bytes`` is asked only where it decides.
        """
        rate = growth(self.points)
        return 0.0 if not rate or lasts(rate, count, available_bytes()) else rate


def growth(points: Sequence[MemoryPoint]) -> float:
    """Return by how many bytes a step the memory grows; 0 if it does not grow steadily."""
    if len(points) < LEAST_POINTS:
        return 0.0
    later = points[round(_FIRST_SHARE * len(points)) :]
    ends = [round(place * len(later) / _PARTS) for place in range(_PARTS + 1)]
    parts = [later[begin:end] for begin, end in pairwise(ends)]
    levels = [statistics.median(point.num_bytes for point in part) for part in parts]
    steps = [statistics.median(point.step for point in part) for part in parts]
    grown = levels[-1] - levels[0]
    if grown < max(_LEAST_BYTES, _LEAST_SHARE * levels[0]) or steps[-1] <= steps[0]:
        return 0.0
    least_rise = _LEAST_OF_MEAN * grown / (_PARTS - 1)
    if any(higher - lower < least_rise for lower, higher in pairwise(levels)):
        return 0.0
    return grown / (steps[-1] - steps[0])


def lasts(rate: float, count: Counters, available_bytes: int) -> bool:
    """Return whether memory lasts to the end of a rank's first pass over its data.

    A dataset may keep what it reads, and grows until all is read. Later passes read nothing new:
    there growth is worth a hint in any case. ``rate`` is in bytes a step.
    """
    if count.loops:
        return False
    steps_left = _AHEAD * count.steps
    if count.loop_length > 0 and count.batches:
        steps_left = (count.loop_length - count.open_batches) * count.steps // count.batches
    return rate * steps_left < available_bytes


def finding_of(ranks: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Return the hint about the rank that grows most; None if none grows steadily.

    Memory of GPUs is asked first: what is kept there takes a little of the host's too.
    """
    for kind, of_rank in (
        ("gpu_memory", "the GPU memory of rank"),
        ("memory", "the memory of rank"),
    ):
        growing = [rank for rank in ranks if rank.get(f"{kind}_growth", 0) > 0]
        if growing:
            most = max(growing, key=lambda rank: rank[f"{kind}_growth"])
            allocated = f"{size(most[f'{kind}_bytes'])} allocated after {most['steps']:,} steps"
            return Finding(
                "memory-grows",
                f"{of_rank} {most['rank']} grows by {size(most[f'{kind}_growth'])} a step",
                where=f"rank {most['rank']} on {most['host']}",
                evidence=(f"{allocated}; {len(growing)} of {len(ranks)} ranks grow",),
                fix="keep numbers instead of tensors: losses.append(loss.item())",
                severity="hint",
            )
    return None
