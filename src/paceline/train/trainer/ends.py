"""Numbers that a task logs after the last batch: one on each rank, for all rows that the rank had.

One rank alone would have logged one number for all rows. A mean over rows is the mean of the ranks' numbers, weighted
by their rows. Of anything else, such as a mean over batches of which the last is shared out unevenly, a count or a
median, nobody can make that one number from those of the ranks, so this is said where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.errors import Finding, Notice


class End(NamedTuple):
    """What a rank has logged.

    Attributes:
        value: The number.
        rows: This rank's rows of the epoch or evaluation.
        is_whole: Whether it is of an integer type, as counts are.
        is_tensor: Whether it is a tensor, as what was computed from rows is, and the number of an epoch is not.
    """

    value: float
    rows: int
    is_whole: bool
    is_tensor: bool = False


NO_END = End(math.nan, 0, False)  # of a rank that had no rows, and so nothing to log


def mean_of_ends(ends: Sequence[End]) -> float:
    """Return the mean over all rows; where no rank had any, that of the ranks.

    Args:
        ends: One of each rank.
    """
    counted = _counted(ends)
    if not differ(ends):
        return counted[0].value  # as it is, without the rounding of a mean
    return math.fsum(end.value * end.rows for end in counted) / sum(end.rows for end in counted)


def differ(ends: Sequence[End]) -> bool:
    """Return whether ranks that had rows have logged different numbers."""
    return len({repr(end.value) for end in _counted(ends)}) > 1  # NaN is itself here


def remarks(of_names: Mapping[str, Sequence[End]]) -> Iterator[Finding | Notice]:
    """Yield what is to be said of names whose numbers would not be those of one rank, or may not be.

    Args:
        of_names: What ranks have logged, by name.
    """
    means = {}
    for name, ends in of_names.items():
        counted = _counted(ends)
        if not differ(ends):
            if _may_be_parts(counted):
                yield _same_count(name, counted[0].value)
            continue
        values = ", ".join(f"{end.value:.6g}" for end in counted[:4]) + (", ..." if len(counted) > 4 else "")
        if all(end.is_whole for end in counted):
            yield _count_averaged(name, values)
        else:
            means[name] = f"{name} on ranks in order: {values}"
    if means:
        yield _weighted(means)


def _may_be_parts(ends: Sequence[End]) -> bool:
    """Return whether equal numbers may be parts of a count: ranks may have as many by chance."""
    return len(ends) > 1 and all(end.is_whole and end.is_tensor and end.value for end in ends)


def _same_count(name: str, value: float) -> Notice:
    return Notice(
        f"{name} was logged after the last batch, and is {value:.0f} on all ranks: it is taken as it is",
        advice=f'if each rank has counted its own rows: self.log({name!r}, value, reduce_fx="sum")',
    )


def _count_averaged(name: str, values: str) -> Finding:
    return Finding(
        "count-averaged",
        f"{name} is a whole number that differs between ranks, and was averaged",
        where=f"self.log({name!r}, ...) after the last batch",
        evidence=(f"on ranks in order: {values}",),
        why="of a count each rank has a part only; the mean of the parts depends on the number of ranks",
        fix=f'self.log({name!r}, value, reduce_fx="sum")',
        severity="warning",
    )


def _weighted(means: Mapping[str, str]) -> Notice:
    return Notice(
        "logged after the last batch, ranks differ: what you see is their mean, weighted by their rows",
        details=(
            *means.values(),
            "That is exact for a mean over rows. A median, an F1 score, or a mean over batches that are",
            "shared out unevenly would be another number on one rank.",
        ),
        advice=f"always exact: self.log({next(iter(means))!r}, ...) in the step, or session.gather before computing it",
    )


def _counted(ends: Sequence[End]) -> list[End]:
    """Return those that had rows; if nobody had any, all with the same weight."""
    return [end for end in ends if end.rows] or [end._replace(rows=1) for end in ends]
