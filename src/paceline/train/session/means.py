"""Take the mean of numbers over the rows of all ranks, as a single rank would have got it.

A rank's loss is the mean over its own rows, of which ranks have different numbers, and none where
the row is another rank's. So a number counts with its rows. Which loop it comes from is decided by
all ranks together: a rank that is left out of a batch has fewer numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.errors import UsageError, option_invalid
from paceline.train import runtime
from paceline.train.data import Iteration, not_of_samples

_WHERE = "session.mean(...)"
_MOST_LOOPS = 16  # of the loaders that a script uses
_ROUNDING = 1e-9


def mean(value: Any, weight: Any, loops: Sequence[Iteration], last: Iteration | None) -> float:
    """Return the mean over the rows of all ranks.

    ``value`` is a number of the last batch, or a list with one for each batch of a loop, ``weight``
    that of each number, in any unit; None for its rows. The numbers may come from ``loops``;
    ``last`` is the one that yielded a batch last. Raises UsageError if a value is not a number, or
    it is unknown which rows it is the mean of.
    """
    values, is_list = _numbers(value), isinstance(value, list | tuple)
    loops = [loop for loop in loops if loop.rows is not None][-_MOST_LOOPS:]
    if weight is not None or not loops:
        weights = [1.0] * len(values) if weight is None else _numbers(weight)
        if len(values) != len(weights):
            raise _unknown(f"{len(values)} numbers have {len(weights)} weights", fix="one for each")
        total, rows, *_ = _over_ranks([_sums(values, weights)])[0]
        return total / rows if rows else float("nan")
    of_batch = not is_list and any(loop.live for loop in loops)
    found = _over_ranks([_of_loop(values, loop, loop is last, of_batch) for loop in loops])
    fitting = {loop: sums for loop, sums in zip(loops, found, strict=True) if not sums[2]}
    if last in fitting and (last.live or is_list):  # of what is under way, or of what has ended
        fitting = {loop: sums for loop, sums in fitting.items() if _kind(loop) == _kind(last)}
    return _only(fitting, len(values))


def _only(fitting: dict[Iteration, list[float]], number: int) -> float:
    """Return the mean over the rows of the loop that some numbers come from."""
    means = [total / rows for total, rows, *_ in fitting.values() if rows] or [float("nan")]
    if not fitting:
        raise _unknown(
            f"no loop over a loader has had {number} batches",
            fix=(
                "of all batches of a loop: losses.append(loss.detach()) in it, session.mean(losses)"
                " after it; of its last one: session.mean(loss, weight=loader.rows)"
            ),
        )
    if max(means) - min(means) > _ROUNDING * max(map(abs, means)):
        raise _unknown(
            f"{len(fitting)} loaders have had batches that fit",
            fix="session.mean(loss, loader=train), with the loader of the rows",
        )
    if any(sums[3] for sums in fitting.values()):
        problem = next(iter(fitting)).any_problem or "the rows of a batch are not its samples"
        raise not_of_samples(problem, call="session.mean")
    return means[0]


def _of_loop(
    values: list[float], loop: Iteration, is_last: bool, of_batch: bool
) -> tuple[float, ...]:
    """Return the sums of ``_sums`` if numbers come from a loop, whether not, and if it may not."""
    rows = [float(rows.of_rank) for rows in loop.served]
    if of_batch and loop.live:
        rows = rows[-1:]
    if len(rows) != len(values):  # the script may leave out what is not this rank's
        rows = [number for number in rows if number]
    if len(rows) != len(values) or (of_batch and not loop.live and not is_last):
        return 0.0, 0.0, 1.0, 0.0
    return (*_sums(values, rows), 0.0, float(bool(loop.any_problem)))


def _sums(values: list[float], weights: list[float]) -> tuple[float, float]:
    own = [
        (value * weight, weight) for value, weight in zip(values, weights, strict=True) if weight
    ]
    return sum(total for total, _ in own), sum(weight for _, weight in own)


def _over_ranks(table: list[tuple[float, ...]]) -> list[list[float]]:
    """Return the sums of a table over the ranks, which may have different numbers of loops."""
    padded = torch.tensor([(0.0, 0.0, 1.0, 0.0)] * _MOST_LOOPS, dtype=torch.float64)
    for row, sums in zip(padded, table, strict=False):
        row[: len(sums)] = torch.tensor(sums, dtype=torch.float64)
    found: list[list[float]] = runtime.sum_of_numbers(padded).tolist()
    return found[: len(table)]


def _kind(loop: Iteration) -> bool | None:
    """Return whether a loop that is under way computes gradients; None for one that has ended."""
    return loop.with_grad if loop.live else None


def _numbers(value: Any) -> list[float]:
    parts = value if isinstance(value, list | tuple) else [value]
    try:
        return [float(part.detach() if isinstance(part, torch.Tensor) else part) for part in parts]
    except (TypeError, ValueError, RuntimeError) as error:
        raise option_invalid(
            f"a mean is of a number or a list of them: {error}",
            where=_WHERE,
            fix="session.mean(loss.mean()); session.gather(rows) for one number of each row",
        ) from None


def _unknown(what: str, *, fix: str) -> UsageError:
    return UsageError.of(
        "batch-weight-unknown",
        f"{what}, so the rows that this is the mean of are not known",
        where=_WHERE,
        why="ranks have different numbers of rows, and a borrowed row must not count",
        fix=fix,
    )
