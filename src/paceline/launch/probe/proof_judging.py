"""Decide whether a loss is a mean over rows, from gradients of a batch and of its parts. Pure.

On several ranks, gradients are averaged with the weights of the ranks' losses: their rows, or what
the script says. So the loss is right if the gradient of the whole batch is that average of the
gradients of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class Pass:
    """One pass of the script's loop over a batch, or over a part of it."""

    rows: list[int]  # positions of its rows in the batch
    backwards: list[Backward] = field(default_factory=list)  # in their order
    statistics: dict[str, torch.Tensor] = field(default_factory=dict)  # buffers after it, by name


@dataclass(frozen=True)
class ProofFacts:
    """What else is known of the passes."""

    names: Sequence[str]  # of the parameters
    is_double: bool = False  # whether everything was computed in float64
    doubt: str = ""  # why the random numbers of a part may be others than in the whole batch
    has_session: bool = False  # whether the script uses a Session


class _Comparison:
    """Gradients of the whole batch beside a sum of others with factors."""

    def __init__(self, whole: Gradients, terms: Sequence[tuple[float, Gradients]]) -> None:
        self.whole, self.terms = whole, terms
        every = [pair for part in (whole, *(part for _, part in terms)) for pair in part.items()]
        kinds = {value.dtype for _, value in every}
        self._limit, floor = max(_LIMITS.get(kind, _LEAST_LIMITS) for kind in kinds or _LIMITS)
        sizes = dict.fromkeys(sorted({place for place, _ in every}), 0.0)
        for place, value in every:
            sizes[place] = max(sizes[place], float(value.abs().max()) if value.numel() else 0.0)
        least = floor * max(sizes.values(), default=0.0)
        self._sizes = {place: max(size, least) for place, size in sizes.items()}
        self.mean = _combined(terms)
        self.errors = self._errors(self.mean)  # relative ones, by parameter
        self.largest = max(self.errors.values(), default=0.0)
        self.differing = [place for place, error in self.errors.items() if error > self._limit]

    def fits(self, expected: Gradients) -> bool:
        """Return whether the whole is what is expected, but for rounding."""
        return max(self._errors(expected).values(), default=0.0) <= self._limit

    def _errors(self, expected: Gradients) -> dict[int, float]:
        return {
            place: _error(self.whole.get(place), expected.get(place), size)
            for place, size in self._sizes.items()
        }


def why_not_repeated(one: Pass, again: Pass, earlier: int) -> str:
    """Return why two passes over one batch are no base for a proof; empty if they are.

    ``earlier`` is the number of backwards of the script's first batch.
    """
    counts = {len(one.backwards), len(again.backwards), earlier}
    if len(counts) > 1:
        return f"its steps have different numbers of backwards ({min(counts)} and {max(counts)})"
    for first, second in zip(one.backwards, again.backwards, strict=True):
        values = [*first.gradients.values(), *second.gradients.values()]
        if not values:
            return "a backward has left no gradients"
        if not all(bool(value.isfinite().all()) for value in values):
            return "its gradients are not finite"
        if _Comparison(first.gradients, [(1.0, second.gradients)]).differing:
            return (
                "it is not deterministic, or carries state from batch to batch: the same batch"
                f" has other gradients the second time ({first.place})"
            )
    for name, value in one.statistics.items():
        if not _is_equal(value, again.statistics.get(name, value)):
            return f"buffer {name} is another one when the same batch is repeated"
    return ""


def judge(
    whole: Pass,
    parts: Sequence[Pass],  # the passes over its parts, which have all of its rows
    facts: ProofFacts,
) -> Proof:
    """Return what the passes over a batch and its parts show."""
    if any(len(part.backwards) != len(whole.backwards) for part in parts):
        return _not_judged("the number of its backwards depends on the number of rows", facts)
    # A loop that cuts its batch into chunks has other rows in each: only their sum is compared.
    terms = [_terms(number, parts) for number in range(len(whole.backwards))]
    counted = [each for each, own in zip(whole.backwards, terms, strict=True) if own]
    total = _combined([(1.0, each.gradients) for each in counted])
    compared = _Comparison(total, list(chain(*terms)))
    if not compared.differing:
        proven = Proof(PROVEN, error=compared.largest, is_double=facts.is_double)
        return _judge_statistics(whole, parts, facts) or proven
    if facts.doubt:
        return _not_judged(f"{facts.doubt} cannot be told by rows", facts)
    alone = zip(counted, filter(None, terms), strict=True)
    wrong = (each.place for each, own in alone if _Comparison(each.gradients, own).differing)
    return _mixes(compared, next(wrong, counted[0].place), whole, parts, facts)


def _terms(number: int, parts: Sequence[Pass]) -> list[tuple[float, Gradients]]:
    """Return the gradients of the parts in a backward, with factors; none if no loss counts."""
    backwards = [part.backwards[number] for part in parts]
    weights = [
        len(part.rows) if each.weight is None else each.weight
        for part, each in zip(parts, backwards, strict=True)
    ]
    given = zip(backwards, weights, strict=True)
    return [(weight / sum(weights), each.gradients) for each, weight in given if weight]


def _combined(terms: Sequence[tuple[float, Gradients]]) -> Gradients:
    """Return the sum of gradients with factors."""
    total: Gradients = {}
    for factor, gradients in terms:
        for place, value in gradients.items():
            total[place] = factor * value + total[place] if place in total else factor * value
    return total


def _error(whole: torch.Tensor | None, expected: torch.Tensor | None, size: float) -> float:
    """Return a difference relative to a size; infinite where the part is not finite."""
    one, other = (0.0 if value is None else value for value in (whole, expected))
    change = torch.as_tensor(one - other)
    if not change.numel() or not size:
        return 0.0
    value = float(change.abs().max()) / size
    return math.inf if math.isnan(value) else value


def _factor(compared: _Comparison) -> float | None:
    """Return the factor by which the whole is larger than the mean; None if it is not the same."""
    pairs = [
        (value, compared.mean[place])
        for place, value in compared.whole.items()
        if place in compared.mean
    ]
    divisor = sum(float(mean.abs().square().sum()) for _, mean in pairs)
    if not divisor:
        return None
    factor = sum(float((value * mean).sum().abs()) for value, mean in pairs) / divisor
    scaled = {place: factor * value for place, value in compared.mean.items()}
    return factor if compared.fits(scaled) else None


def _mixes(
    compared: _Comparison, line: str, whole: Pass, parts: Sequence[Pass], facts: ProofFacts
) -> Proof:
    first = compared.differing[0]
    error, name = compared.errors[first], facts.names[first]
    by = f"by {error:.1%} of it" if math.isfinite(error) else "and is not finite in a part"
    counts = f"{len(compared.differing)} of {len(compared.errors)} parameters differ"
    evidence = [f"the gradient of {name} differs {by}; {counts}"]
    is_sum = compared.fits(_combined([(1.0, gradients) for _, gradients in compared.terms]))
    factor = _factor(compared)
    if is_sum:
        evidence.append("it is the sum of the gradients of the parts: the loss is a sum over rows")
    elif factor is not None:
        evidence.append(f"the factor is {factor:.4g} for all parameters")
    finding = Finding(
        "loss-mixes-rows",
        "the loss is not a mean over rows: the gradient of a batch of"
        f" {_in_words(whole, parts)}, is not the mean of theirs",
        where=line,
        evidence=tuple(evidence),
        why="each of several ranks computes the loss of a part, so they would train another model",
        fix=_fix(is_sum, facts),
    )
    reason = f"in {line}, where {name} differs first"
    return Proof(MIXES, reason, error, facts.is_double, finding.to_json())


def _in_words(whole: Pass, parts: Sequence[Pass]) -> str:
    sizes = " and ".join(str(len(part.rows)) for part in parts)
    return f"{len(whole.rows)} rows, cut into parts of {sizes}"


def _fix(is_sum: bool, facts: ProofFacts) -> str:
    if is_sum:
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


def _judge_statistics(whole: Pass, parts: Sequence[Pass], facts: ProofFacts) -> Proof | None:
    """Return the result if a buffer depends on the rows; None otherwise."""
    for name, value in whole.statistics.items():
        others = [part.statistics.get(name, value) for part in parts]
        if all(_is_equal(value, other) for other in others):
            continue
        is_mean = all(other.shape == value.shape for other in others) and _is_equal(
            value.double() * len(whole.rows),
            sum(
                (
                    other.double() * len(part.rows)
                    for part, other in zip(parts, others, strict=True)
                ),
                torch.zeros(()),
            ),
        )
        if is_mean or facts.doubt:
            return _not_judged(f"buffer {name} is a statistic of the batch", facts)
        finding = Finding(
            "loss-mixes-rows",
            f"buffer {name} depends on which rows are computed together: it is another one after a"
            f" batch of {_in_words(whole, parts)}",
            where=whole.backwards[0].place,
            why="each of several ranks would update it with its own rows, and rank 0's is kept",
            fix="update it with the rows of all ranks: session.gather, or dist.all_reduce",
        )
        return Proof(MIXES, f"in buffer {name}", 0.0, facts.is_double, finding.to_json())
    return None


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    limit = _LIMITS.get(one.dtype, _LEAST_LIMITS)[0] if one.is_floating_point() else 0.0
    return bool(
        torch.allclose(one.double(), other.double(), rtol=limit, atol=limit, equal_nan=True)
    )


def _not_judged(reason: str, facts: ProofFacts) -> Proof:
    return Proof(NOT_JUDGED, reason, is_double=facts.is_double)
