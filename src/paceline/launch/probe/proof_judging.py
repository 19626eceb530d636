"""Decide whether a loss is a mean over rows, from gradients of a batch and of its parts. Pure.

On several ranks, gradients are averaged with the weights of the ranks' losses: their rows, or what
the script says. So the loss is right if the gradient of the whole batch is that average of the
gradients of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from paceline.errors import Finding
from paceline.launch.probe.proof_state import Gradients
from paceline.rundir.proofs import MIXES, NOT_JUDGED, PROVEN, Proof

# By type: differences that rounding makes, relative to the gradient of a parameter, and how large
# this gradient is taken to be at least, relative to the largest: some are zero but for rounding.
_LIMITS = {torch.float64: (1e-8, 1e-4), torch.float32: (1e-3, 1e-2)}
_LEAST_LIMITS = (5e-2, 1e-1)  # of types with fewer digits


@dataclass
class Backward:
    """One backward of a pass."""

    gradients: Gradients  # what it has added
    weight: float | None  # weight of its loss; None is its number of rows
    place: str  # the line of the script that has computed its loss


@dataclass
class Pass:
    """One pass of the script's loop over a batch, or over a part of it."""

    num_rows: int  # number of rows
    backwards: list[Backward]  # in their order
    statistics: dict[str, torch.Tensor]  # buffers after it, by name


@dataclass(frozen=True)
class Facts:
    """What else is known of the passes."""

    names: Sequence[str]  # of the parameters
    is_double: bool = False  # whether everything was computed in float64
    doubt: str = ""  # why the random numbers of a part may be others than in the whole batch
    has_session: bool = False  # whether the script uses a Session


@dataclass(frozen=True)
class _Difference:
    """How a backward of the whole batch differs from the average of its parts."""

    errors: dict[int, float]  # relative differences by parameter
    limit: float  # the largest that rounding makes
    factor: float | None = None  # of the whole to the average, if it is the same everywhere
    is_sum: bool = False  # whether the whole is the sum of the parts

    @property
    def largest(self) -> float:
        return max(self.errors.values(), default=0.0)

    @property
    def differing(self) -> list[int]:
        return [place for place, error in self.errors.items() if not error <= self.limit]


def why_not_repeated(one: Pass, again: Pass, earlier: int | None) -> str:
    """Return why two passes over the same batch are no base for a proof; empty if they are.

    Args:
        one: The first pass.
        again: The second one, which should be the same.
        earlier: Backwards of the script's first batch; None if unknown.
    """
    counts = {len(one.backwards), len(again.backwards)} | ({earlier} if earlier else set())
    if counts == {0}:
        return "no loss.backward() was seen between a batch and the next"
    if len(counts) > 1:
        return f"its steps have different numbers of backwards ({min(counts)} and {max(counts)})"
    for first, second in zip(one.backwards, again.backwards, strict=True):
        values = [*first.gradients.values(), *second.gradients.values()]
        if not values:
            return "a backward has left no gradients"
        if not all(bool(value.isfinite().all()) for value in values):
            return "its gradients are not finite"
        parts = ((1.0, second.gradients),)
        if _difference(first.gradients, parts).differing:
            return (
                "it is not deterministic, or carries state from batch to batch: the same batch"
                f" has other gradients the second time ({first.place})"
            )
    for name, value in one.statistics.items():
        if not _is_equal(value, again.statistics.get(name, value)):
            return f"buffer {name} is another one when the same batch is repeated"
    return ""


def judge(whole: Pass, parts: Sequence[Pass], facts: Facts) -> Proof:
    """Return what the passes over a batch and its parts show.

    Args:
        whole: The pass over the whole batch.
        parts: The passes over its parts, which have all of its rows.
        facts: What else is known.
    """
    if any(len(part.backwards) != len(whole.backwards) for part in parts):
        return _not_judged("the number of its backwards depends on the number of rows", facts)
    # A loop that cuts its batch into chunks has other rows in each: only their sum is compared.
    terms = [_terms(number, parts) for number in range(len(whole.backwards))]
    counted = [each for each, own in zip(whole.backwards, terms, strict=True) if own]
    difference = _difference(_total(counted), list(chain(*terms)), looks_for_factor=True)
    if difference.differing and facts.doubt:
        return _not_judged(f"{facts.doubt} cannot be told by rows", facts)
    if difference.differing:
        alone = zip(counted, filter(None, terms), strict=True)
        wrong = (each for each, own in alone if _difference(each.gradients, own).differing)
        return _mixes(next(wrong, counted[0]), difference, whole, parts, facts)
    return _judge_statistics(whole, parts, facts) or Proof(
        PROVEN, error=difference.largest, is_double=facts.is_double
    )


def _terms(number: int, parts: Sequence[Pass]) -> list[tuple[float, Gradients]]:
    """Return the gradients of the parts in a backward, with factors; none if no loss counts."""
    backwards = [(part.backwards[number], part.num_rows) for part in parts]
    weights = [rows if each.weight is None else each.weight for each, rows in backwards]
    total = sum(weights)
    given = zip(backwards, weights, strict=True)
    return [(weight / total, each.gradients) for (each, _), weight in given if weight]


def _total(backwards: Sequence[Backward]) -> Gradients:
    """Return the sum of what backwards have added to gradients."""
    places = {place for each in backwards for place in each.gradients}
    terms = [(1.0, each.gradients) for each in backwards]
    return {place: _sum([(factor, part.get(place)) for factor, part in terms]) for place in places}


def _difference(
    whole: Gradients,
    parts: Sequence[tuple[float, Gradients]],
    *,
    looks_for_factor: bool = False,
) -> _Difference:
    """Return how gradients differ from a sum of others with factors."""
    places = sorted({*whole, *(place for _, part in parts for place in part)})
    limit, floor = _limits(
        [*whole.values(), *(value for _, part in parts for value in part.values())]
    )
    sizes = {
        place: max(_size(each, place) for each in (whole, *(p for _, p in parts)))
        for place in places
    }
    least = floor * max(sizes.values(), default=0.0)
    mean = {place: _sum([(factor, part.get(place)) for factor, part in parts]) for place in places}

    def errors(expected: Gradients) -> dict[int, float]:
        return {
            place: _error(whole.get(place), expected[place], max(sizes[place], least))
            for place in places
        }

    found = _Difference(errors(mean), limit)
    if not found.differing or not looks_for_factor:
        return found
    total = {place: _sum([(1.0, part.get(place)) for _, part in parts]) for place in places}
    is_sum = not _Difference(errors(total), limit).differing
    factor = _factor(whole, mean)
    scaled = {place: value * factor for place, value in mean.items()}
    is_constant = not _Difference(errors(scaled), limit).differing
    return _Difference(found.errors, limit, factor if is_constant else None, is_sum)


def _limits(values: Sequence[torch.Tensor]) -> tuple[float, float]:
    kinds = {value.dtype for value in values}
    return max((_LIMITS.get(kind, _LEAST_LIMITS) for kind in kinds), default=_LEAST_LIMITS)


def _size(gradients: Gradients, place: int) -> float:
    value = gradients.get(place)
    return 0.0 if value is None or not value.numel() else float(value.abs().max())


def _sum(terms: Sequence[tuple[float, torch.Tensor | None]]) -> torch.Tensor:
    total = sum(factor * value for factor, value in terms if value is not None)
    return total if isinstance(total, torch.Tensor) else torch.tensor(total)


def _error(whole: torch.Tensor | None, expected: torch.Tensor, size: float) -> float:
    """Return a difference relative to a size; infinite where the part is not finite."""
    change = expected if whole is None else whole - expected
    if not change.numel() or not size:
        return 0.0
    value = float(change.abs().max()) / size
    return float("inf") if math.isnan(value) else value


def _factor(whole: Gradients, mean: Gradients) -> float:
    """Return the factor that fits best."""
    products = [(mean[place] * value).sum().abs() for place, value in whole.items()]
    squares = [(mean[place] * mean[place]).sum().abs() for place in whole]
    divisor = float(sum(squares))
    return float(sum(products)) / divisor if divisor else 0.0


def _mixes(
    backward: Backward, difference: _Difference, whole: Pass, parts: Sequence[Pass], facts: Facts
) -> Proof:
    place = difference.differing[0]
    num_differing, num_all = len(difference.differing), len(difference.errors)
    error = difference.errors[place]
    by = f"by {error:.1%} of it" if error < 10 else "and is not finite in a part"
    evidence = [
        f"the gradient of {facts.names[place]} differs {by}; {num_differing} of {num_all}"
        " parameters differ"
    ]
    if difference.is_sum:
        evidence.append(
            "the gradient of the batch is the sum of those of its parts: a sum over rows"
        )
    elif difference.factor is not None:
        evidence.append(f"the factor is {difference.factor:.4g} for all parameters")
    finding = Finding(
        "loss-mixes-rows",
        f"the loss is not a mean over rows: the gradient of a batch of {whole.num_rows} rows is not"
        f" the mean of those of its parts of {_in_words(parts)} rows",
        where=backward.place,
        evidence=tuple(evidence),
        why="each of several ranks computes the loss of a part, so they would train another model",
        fix=_fix(difference, facts),
    )
    reason = f"in {backward.place}, where {facts.names[place]} differs first"
    return Proof(MIXES, reason, error, facts.is_double, finding.to_json())


def _in_words(parts: Sequence[Pass]) -> str:
    return " and ".join(str(part.num_rows) for part in parts)


def _fix(difference: _Difference, facts: Facts) -> str:
    if difference.is_sum:
        return "divide it by the rows of this rank: loss / len(x)"
    if facts.has_session:
        return (
            "session.backward(loss, weight=n) with n what it is a mean over (tokens, boxes,"
            " positives); if it compares rows: rows = session.gather(rows, gradients=True) first"
        )
    return (
        "divide by the count of all ranks (dist.all_reduce(count); loss = total * world_size /"
        " count); if it compares rows: torch.distributed.nn.functional.all_gather(rows) first"
    )


def _judge_statistics(whole: Pass, parts: Sequence[Pass], facts: Facts) -> Proof | None:
    """Return the result if a buffer depends on the rows; None otherwise."""
    for name, value in whole.statistics.items():
        others = [part.statistics.get(name, value) for part in parts]
        if all(_is_equal(value, other) for other in others):
            continue
        shares = [part.num_rows / whole.num_rows for part in parts]
        is_mean = all(other.shape == value.shape for other in others) and _is_equal(
            value.double(),
            _sum([(share, other.double()) for share, other in zip(shares, others, strict=True)]),
        )
        if is_mean or facts.doubt:
            return _not_judged(f"buffer {name} is a statistic of the batch", facts)
        return _counts(name, whole, parts, facts)
    return None


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    limit = _LIMITS.get(one.dtype, _LEAST_LIMITS)[0] if one.is_floating_point() else 0.0
    return bool(
        torch.allclose(one.double(), other.double(), rtol=limit, atol=limit, equal_nan=True)
    )


def _counts(name: str, whole: Pass, parts: Sequence[Pass], facts: Facts) -> Proof:
    finding = Finding(
        "loss-mixes-rows",
        f"buffer {name} of a batch of {whole.num_rows} rows is another one than of its parts of"
        f" {_in_words(parts)} rows",
        where=whole.backwards[0].place,
        why="each of several ranks would update it with its own rows, and rank 0's is kept",
        fix=(
            "session.gather(rows) before the update"
            if facts.has_session
            else "dist.all_reduce what it is updated with"
        ),
    )
    return Proof(MIXES, f"in buffer {name}", 0.0, facts.is_double, finding.to_json())


def _not_judged(reason: str, facts: Facts) -> Proof:
    return Proof(NOT_JUDGED, reason, is_double=facts.is_double)
