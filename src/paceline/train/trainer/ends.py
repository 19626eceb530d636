"""Combine numbers logged after the last batch: one on each rank, for all rows of the rank.

A single rank would have logged one number for all rows. A mean over rows is the mean of the ranks'
numbers, weighted by their rows. Of other numbers, such as a mean over unevenly divided batches, a
count or a median, it cannot be computed from the ranks' numbers, so a notice is printed if they
differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paceline.errors import Finding, Notice


class LoggedNumber(NamedTuple):
    """The number that a rank has logged."""

    value: float  # the number
    rows: int  # this rank's rows of the epoch or evaluation
    is_whole: bool  # whether it is of an integer type, as counts are
    # whether it is a tensor, as results computed from rows are; an epoch's number is not
    is_tensor: bool = False


NO_END = LoggedNumber(math.nan, 0, False)  # of a rank that had no rows, and so logged nothing


def mean_of_ends(ends: Sequence[LoggedNumber]) -> float:
    """Return the mean over all rows; if no rank had rows, the mean over ranks."""
    counted = _counted(ends)
    if not differ(ends):
        return counted[0].value  # without the rounding of a mean
    return math.fsum(end.value * end.rows for end in counted) / sum(end.rows for end in counted)


def differ(ends: Sequence[LoggedNumber]) -> bool:
    """Return whether ranks that had rows have logged different numbers."""
    return len({repr(end.value) for end in _counted(ends)}) > 1  # NaN equals NaN in repr


def remarks(of_names: Mapping[str, Sequence[LoggedNumber]]) -> Iterator[Finding | Notice]:
    """Yield findings and notices about numbers that may differ from a single rank's."""
    means = {}
    for name, ends in of_names.items():
        counted = _counted(ends)
        if not differ(ends):
            if _may_be_parts(counted):
                yield _same_count(name, counted[0].value)
            continue
        more = ", ..." if len(counted) > 4 else ""
        values = ", ".join(f"{end.value:.6g}" for end in counted[:4]) + more
        if all(end.is_whole for end in counted):
            yield _count_averaged(name, values)
        else:
            means[name] = f"{name} on ranks in order: {values}"
    if means:
        yield _weighted(means)


def _may_be_parts(ends: Sequence[LoggedNumber]) -> bool:
    """Return whether equal numbers may be parts of a count: ranks may have equal ones by chance."""
    counts = [end for end in ends if end.is_whole and end.is_tensor]
    return len(ends) > 1 and len(counts) == len(ends) and all(end.value for end in counts)


def _same_count(name: str, value: float) -> Notice:
    return Notice(
        f"{name} was logged after the last batch, and is {value:.0f} on all ranks: it is used as"
        " it is",
        advice=f'if each rank has counted its own rows: self.log({name!r}, value, reduce_fx="sum")',
    )


def _count_averaged(name: str, values: str) -> Finding:
    return Finding(
        "count-averaged",
        f"{name} is a whole number that differs between ranks, and was averaged",
        where=f"self.log({name!r}, ...) after the last batch",
        evidence=(f"on ranks in order: {values}",),
        why=(
            "of a count each rank has a part only; the mean of the parts depends on the number of"
            " ranks"
        ),
        fix=f'self.log({name!r}, value, reduce_fx="sum")',
        severity="warning",
    )


def _weighted(means: Mapping[str, str]) -> Notice:
    return Notice(
        "logged after the last batch, ranks differ: what you see is their mean, weighted by their"
        " rows",
        details=(
            *means.values(),
            (
                "That is exact for a mean over rows. A median, an F1 score, or a mean over batches"
                " that are"
            ),
            "shared out unevenly would be another number on one rank.",
        ),
        advice=(
            f"always exact: self.log({next(iter(means))!r}, ...) in the step, or session.gather"
            " before computing it"
        ),
    )


def _counted(ends: Sequence[LoggedNumber]) -> list[LoggedNumber]:
    """Return the numbers of ranks with rows; if no rank had any, all numbers with equal weight."""
    return [end for end in ends if end.rows] or [end._replace(rows=1) for end in ends]
