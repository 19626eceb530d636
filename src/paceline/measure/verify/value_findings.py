"""What ``paceline verify`` says of values that are not those of one process. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import Finding
from paceline.measure.verify.recorded_values import Compared, RecordedCall, Sums

_MOST_NAMES = 4
_WHY = "training on several ranks is another one than on 1 rank, with the same settings"


def _numbers(compared: Compared, ranks: str) -> str:
    magnitudes = f"{compared.total[2] / compared.copies:.6g}, on 1 rank"
    of_one = compared.expected[2] / compared.copies
    return (
        f"sum of its magnitudes on {ranks}: {magnitudes} {of_one:.6g}"
        f" (largest relative difference of its sums {compared.error:.2g})"
    )


def _others(wrong: Sequence[Compared], first: str) -> list[str]:
    names = [each.name for each in wrong if each.name != first]
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return [f"also different: {', '.join(names[:_MOST_NAMES])}{rest}"] if names else []


def output_differs(
    module: RecordedCall, compared: Compared, first: str, *, step: int, ranks: str, place: str
) -> Finding:
    """Return the finding that a module computes something else."""
    return Finding(
        "output-differs",
        f"{module.name} ({module.type}) returns other values on {ranks} than on 1 rank",
        where=module.place or place,
        evidence=(
            f"first: {first}",
            f"step {step}: what goes into the model is the same, and earlier modules agree",
            _numbers(compared, ranks),
        ),
        why=_WHY,
        fix=(
            "look at what ranks exchange in this module: partial sums that are not added, or added"
            " twice, a bias added by each rank, parts in another order"
        ),
        severity="warning",
    )


def same_rows(model: str, *, step: int, ranks: str, place: str, counts: tuple[int, int]) -> Finding:
    """Return the finding that ranks compute the same rows, and others are left out."""
    distinct, number = counts
    return Finding(
        "output-differs",
        f"{number} ranks give the model {distinct} different input"
        f"{'s' if distinct > 1 else ''}, which together are not the batch of 1 rank",
        where=place,
        evidence=(
            f"first: {model}",
            f"step {step}: ranks read the same rows, and rows that 1 rank reads are left out",
        ),
        why="the other rows are never learned from, and the global batch is smaller than it seems",
        fix="divide the rows by the rank among those that share data, not by the rank in its node",
        severity="warning",
    )


def other_rows(module: str, *, step: int, ranks: str, place: str) -> Finding:
    """Return the finding that parts of a layer are computed from different rows."""
    return Finding(
        "output-differs",
        f"{ranks} compute parts of {module}, each from other rows",
        where=place,
        evidence=(
            f"first: {module}",
            f"step {step}: ranks hold parts of this layer, so outputs are parts of one output; the"
            " inputs of their models are different",
        ),
        why="sums over ranks add the parts of different samples",
        fix="give ranks that divide a layer the same rows: seed and cut the batch by the data rank",
        severity="warning",
    )


def loss_differs(
    first: Compared,
    wrong: Sequence[Compared],
    *,
    step: int,
    place: str,
    losses: tuple[float, float],
) -> Finding:
    """Return the finding that ranks compute another loss from the same outputs."""
    return Finding(
        "loss-differs",
        f"the loss of step {step} is {losses[0]:.6g} over all ranks, and {losses[1]:.6g} on 1 rank",
        where=place,
        evidence=(
            f"first: {first.name}",
            "inputs, parameters and outputs of modules agree; loss and gradients do not",
            *_others(wrong, first.name),
        ),
        why=(
            "each rank computes something else than its part of the loss; where a loss compares"
            " the samples of a batch (contrastive), that is expected"
        ),
        fix="divide by the number of samples or tokens of all ranks, or gather what is compared",
        severity="warning",
    )


def updates_differ(
    what: str,
    first: Compared,
    wrong: Sequence[Compared],
    *,
    step: int,
    place: str,
    evidence: Sequence[str] = (),
    fix: str,
    ranks: str,
) -> Finding:
    """Return the finding that a gradient, an update or a parameter is another one."""
    return Finding(
        "updates-differ",
        what,
        where=place,
        evidence=(
            f"first: {first.name}",
            f"step {step}: {_numbers(first, ranks)}",
            *evidence,
            *_others(wrong, first.name),
        ),
        why=_WHY,
        fix=fix,
        severity="warning",
    )


def initialisation_differs(
    what: str, first: Compared, wrong: Sequence[Compared], *, place: str, fix: str
) -> Finding:
    """Return the finding that ranks begin with other parameters than they must."""
    return Finding(
        "initialisation-differs",
        what,
        where=place,
        evidence=(
            f"first: {first.name}",
            "step 1: parameters differ before the first step",
            *_others(wrong, first.name),
        ),
        why="ranks train another model than one process does",
        fix=fix,
        severity="warning",
    )


def mean_loss(losses: Sequence[Sums]) -> float:
    """Return the mean loss of ranks."""
    number = sum(loss[0] for loss in losses)
    return sum(loss[1] for loss in losses) / number if number else 0.0
