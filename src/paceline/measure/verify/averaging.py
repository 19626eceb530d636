"""Decide whether ranks train one model together: the gradients that they apply are equal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.measure.verify.records import Training, World

_LEAST_STEPS = 2
_LEAST_SHARE = 0.5  # of the steps: after a skipped step the numbers of two ranks differ by one


def trainings(world: World) -> list[tuple[Training, ...]]:
    """Return the optimizers that all ranks have, each as its records of every rank."""
    numbers = set.intersection(*(set(rank.trainings) for rank in world.ranks))
    return [tuple(rank.trainings[number] for rank in world.ranks) for number in sorted(numbers)]


def main_training(world: World) -> tuple[Training, ...] | None:
    """Return the optimizer with the most steps of those that all ranks have; None without one."""
    return max(trainings(world), key=lambda ranks: len(ranks[0].steps), default=None)


def are_averaged(ranks: Sequence[Training], *, until: int | None = None) -> bool:
    """Return whether ranks apply equal gradients, which differ from step to step.

    Args:
        ranks: The records of an optimizer, of every rank.
        until: The last step to look at; None for all.
    """
    gradients = _gradients(ranks, until=until)
    equal = [values[0] for values in gradients if len(set(values)) == 1 and values[0] is not None]
    is_enough = len(equal) >= min(_LEAST_STEPS, len(gradients)) and len(equal) > 0
    has_changed = len(set(equal)) >= min(_LEAST_STEPS, len(equal))
    return is_enough and has_changed and len(equal) >= _LEAST_SHARE * len(gradients)


def are_apart(ranks: Sequence[Training]) -> bool:
    """Return whether each rank applies its own gradients, to the parameters of the same model."""
    is_one_model = len({training.names for training in ranks}) == 1
    if not is_one_model or not all(training.is_whole for training in ranks):
        return False
    gradients = _gradients(ranks)
    differing = [values for values in gradients if len(set(values)) > 1 and None not in values]
    return len(differing) > (1 - _LEAST_SHARE) * len(gradients)


def _gradients(ranks: Sequence[Training], *, until: int | None = None) -> list[list[int | None]]:
    """Return the gradients that ranks have applied, by step and rank, as they were recorded."""
    steps = zip(*(training.steps[:until] for training in ranks), strict=False)
    return [[step.gradients for step in of_ranks] for of_ranks in steps]
