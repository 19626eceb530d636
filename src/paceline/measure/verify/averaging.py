"""Decide whether ranks train one model together: the gradients that they apply are equal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.measure.verify.records import Training, World

_LEAST_STEPS = 2
_LEAST_SHARE = 0.5  # of the steps: after a skipped step the numbers of two ranks differ by one


def trainings(world: World) -> list[tuple[Training, ...]]:
    """Return the optimizers that all ranks have, each as its records of every rank."""
    numbers = set.intersection(*(set(rank.trainings) for rank in world.ranks))
    return [
        _in_step([rank.trainings[number] for rank in world.ranks]) for number in sorted(numbers)
    ]


def _in_step(ranks: Sequence[Training]) -> tuple[Training, ...]:
    """Return the steps that ranks make together: all, or those before an epoch ends on one alone.

    Under torch's Join, a rank whose samples are used up waits for the others.
    """
    lengths = [_of_first_loop(training) for training in ranks]
    if len(set(lengths)) == 1 or all(
        n == len(t.steps) for n, t in zip(lengths, ranks, strict=True)
    ):
        return tuple(ranks)
    return tuple(
        replace(
            training,
            steps=training.steps[: min(lengths)],
            checksums={n: one for n, one in training.checksums.items() if n < min(lengths)},
        )
        for training in ranks
    )


def _of_first_loop(training: Training) -> int:
    return sum(step.loop == training.steps[0].loop for step in training.steps)


def main_training(world: World) -> tuple[Training, ...] | None:
    """Return the optimizer with the most steps of those that all ranks have; None without one."""
    return max(trainings(world), key=lambda ranks: len(ranks[0].steps), default=None)


def are_averaged(ranks: Sequence[Training], *, until: int | None = None) -> bool:
    """Return whether ranks apply equal gradients, up to a step, which differ from step to step."""
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


def is_each_alone(ranks: Sequence[Training]) -> bool:
    """Return whether it is proven that each rank trains a model of its own, and alike.

    Parameters of the same names and sizes differ after every step, and neither they nor their
    gradients have met those of another rank. Ranks with learning rates of their own are a search.
    """
    first = ranks[0]
    sizes = {(part.num_elements, part.num_connected) for part in ranks}
    rates = [{step.rates for step in each} for each in zip(*(p.steps for p in ranks), strict=False)]
    steps = sorted(set.intersection(*(set(part.checksums) for part in ranks)) - {0})
    sums = [{part.checksums[step] for part in ranks} for step in steps]
    return (
        are_apart(ranks)
        and sizes == {(first.num_elements, len(ranks))}
        and all(len(each) == 1 for each in rates)
        and len(sums) >= _LEAST_STEPS
        and all(len(each) == len(ranks) for each in sums)
        and all(_is_untouched(part) for part in ranks)
    )


def _is_untouched(training: Training) -> bool:
    """Return whether only its own steps have changed parameters, with gradients of this rank."""
    checksums = training.checksums
    return not any(step.exchanged for step in training.steps) and all(
        step.after == checksums.get(step.number, step.after) for step in training.steps
    )


def _gradients(ranks: Sequence[Training], *, until: int | None = None) -> list[list[int | None]]:
    """Return the gradients that ranks have applied, by step and rank, as they were recorded."""
    steps = zip(*(training.steps[:until] for training in ranks), strict=False)
    return [[step.gradients for step in of_ranks] for of_ranks in steps]
