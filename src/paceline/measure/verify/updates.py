"""Decide whether the first losses and gradients on several ranks are those of one rank. Pure.

They are compared only where they must be equal: the same samples, from the same parameters, without
random numbers and without statistics of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.errors import Finding
from paceline.measure.verify import replicas
from paceline.measure.verify.rates import SAME_BATCH, batch_of, read_the_same
from paceline.measure.verify.records import (
    ComparisonVerdict,
    Rank,
    RecordedTraining,
    RecordedWorld,
    broken,
    kept,
    not_judged,
)

_CLOSE_LOSS = 1e-2  # relative: a loss in bfloat16 has 8 bits
_CLOSE_GRADIENT = 0.1  # relative, of their norm


def unknown(world: RecordedWorld, one: RecordedWorld) -> str:
    """Return why losses and gradients cannot be compared; empty if they can."""
    training, reference = replicas.main_training(world), replicas.main_training(one)
    if training is None or reference is None:
        return "no optimizer step was seen"
    reason = _other_samples(world, one)
    if reason:
        return reason
    if not all(part.is_whole for part in (*training, *reference)):
        return "parameters are divided among ranks"
    starts = {part.checksums.get(0) for part in (*training, *reference)}
    if len(starts) > 1:
        return "training begins with other parameters than on 1 rank: set a seed"
    return _not_repeatable(reference[0]) or _not_single(training) or _not_single(reference)


def _other_samples(world: RecordedWorld, one: RecordedWorld) -> str:
    batch, batch_of_one = batch_of(world), batch_of(one)
    if not batch or not batch_of_one:
        return "the samples of a step are unknown"
    if read_the_same(world):
        return SAME_BATCH
    if batch != batch_of_one:
        return f"a step has {batch:,} samples, on 1 rank {batch_of_one:,}: give --batch-option"
    first = [index for rank in world.ranks for index in rank.epochs[0].batches[0] or ()]
    if sorted(first) != sorted(one.ranks[0].epochs[0].batches[0] or ()):
        return "the first batch has other samples than on 1 rank"
    rows = one.ranks[0].epochs[0].rows
    rows_of_ranks = [(index, row) for rank in world.ranks for index, row in _first_rows(rank)]
    if any(rows.get(index, row) != row for index, row in rows_of_ranks):
        return "samples have other values than on 1 rank, as with augmentation at random"
    return ""


def _first_rows(rank: Rank) -> list[tuple[int, tuple[int, ...]]]:
    """Return index and hashes of the samples of a rank's first batch, as far as known."""
    epoch = rank.epochs[0]
    return [(index, epoch.rows[index]) for index in epoch.batches[0] or () if index in epoch.rows]


def _not_repeatable(training: RecordedTraining) -> str:
    if training.is_random:
        return "a module draws random numbers, on each rank its own (Dropout)"
    if training.has_statistics:
        return "a module has statistics of its batch, on each rank its own (BatchNorm)"
    return ""


def _not_single(ranks: Sequence[RecordedTraining]) -> str:
    if not all(training.steps for training in ranks):
        return "no optimizer step was seen"
    firsts = [training.steps[0] for training in ranks]
    # Accumulated or summed losses may be scaled in ways that only the script knows.
    if any(len(step.losses) != 1 or step.losses[0] is None for step in firsts):
        return "a step has several losses, or none that is a number"
    return ""


def judge_loss(world: RecordedWorld, one: RecordedWorld) -> ComparisonVerdict:
    """Decide whether the first loss, over all ranks, is that on one rank."""
    reason = unknown(world, one)
    if reason:
        return not_judged(reason)
    losses, expected = _first_losses(world), _first_losses(one)[0]
    if _matches(world, losses, expected):
        return kept(f"loss of the first step: {expected:.6g}")
    mean = sum(losses) / len(losses)
    return broken(
        Finding(
            "loss-differs",
            f"the loss of the first step is {mean:.6g} on {world.name}, and {expected:.6g} on 1"
            " rank",
            where=_place(world),
            evidence=(
                "it is the mean over ranks; the sum over ranks is another one too",
                "both have the same samples and parameters",
            ),
            why=(
                "each rank computes something else than its part of the loss; where a loss compares"
                " the samples of a batch (contrastive), that is expected"
            ),
            fix="make the loss the mean over samples, or gather what it compares",
            severity="hint",
        )
    )


def _place(world: RecordedWorld) -> str:
    training = replicas.main_training(world)
    return training[0].place if training is not None else ""


def _first_losses(world: RecordedWorld) -> list[float]:
    training = replicas.main_training(world) or ()
    return [float(part.steps[0].losses[0] or 0.0) for part in training]


def _matches(world: RecordedWorld, losses: Sequence[float], expected: float) -> bool:
    """Return whether losses of ranks are a mean, a mean of samples, or a sum like that expected."""
    sizes = [len(rank.epochs[0].batches[0] or ()) for rank in world.ranks]
    weighted = sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / sum(sizes)
    # A loss may be a mean over rows or a sum, and the last batch of a rank may be shorter.
    candidates = (sum(losses) / len(losses), weighted, sum(losses))
    return any(
        math.isclose(value, expected, rel_tol=_CLOSE_LOSS, abs_tol=1e-6) for value in candidates
    )


def judge_updates(world: RecordedWorld, one: RecordedWorld) -> ComparisonVerdict:
    """Decide whether the first gradient that is applied is that on one rank."""
    reason = unknown(world, one)
    if reason:
        return not_judged(reason)
    if not _matches(world, _first_losses(world), _first_losses(one)[0]):
        return not_judged("the losses differ, and so must the gradients")
    training, reference = replicas.main_training(world), replicas.main_training(one)
    assert training is not None
    assert reference is not None
    if not replicas.are_averaged(training):
        return not_judged("ranks apply different gradients: they may train apart")
    values, expected = training[0].steps[0].sample, reference[0].steps[0].sample
    norm = math.hypot(*expected)
    if len(values) != len(expected) or not norm:
        return not_judged("the gradients of the first step are unknown")
    if math.dist(values, expected) <= _CLOSE_GRADIENT * norm:
        return kept("gradients of the first step agree")
    rates = training[0].steps[0].rates, reference[0].steps[0].rates
    return _judge_ratio(world, values, expected, rates)


def _judge_ratio(
    world: RecordedWorld,
    values: Sequence[float],
    expected: Sequence[float],
    rates: tuple[tuple[float, ...], tuple[float, ...]],
) -> ComparisonVerdict:
    """Decide about gradients that differ: by a factor, which the learning rate may undo."""
    norm = math.hypot(*expected)
    ratio = sum(one * other for one, other in zip(values, expected, strict=True)) / norm**2
    rest = math.dist(values, [ratio * value for value in expected])
    # The least-squares factor: what it leaves over is a difference of direction.
    is_factor = rest <= _CLOSE_GRADIENT * math.hypot(*values)
    if is_factor and _undoes(ratio, *rates):
        return kept(f"gradients are {ratio:.3g} times those on 1 rank, and the rate undoes it")
    what = f"{ratio:.3g} times" if is_factor else "other ones than"
    return broken(
        Finding(
            "updates-differ",
            f"the gradients that {world.name} apply are {what} those on 1 rank",
            where=_place(world),
            evidence=(
                "in the first step, from the same samples and parameters, with the same loss",
                f"norm of {len(values)} values: {math.hypot(*values):.4g}, on 1 rank {norm:.4g}",
            ),
            why="training on several ranks is another one than on 1 rank, with the same settings",
            fix=(
                "average over samples: a loss that is a mean, and gradients divided by the number"
                " of ranks once"
            ),
            severity="warning",
        )
    )


def _undoes(ratio: float, rates: Sequence[float], rates_of_one: Sequence[float]) -> bool:
    """Return whether a learning rate makes up for the factor of the gradients."""
    pairs = zip(rates, rates_of_one, strict=False)
    return all(math.isclose(ratio * rate, other, rel_tol=_CLOSE_GRADIENT) for rate, other in pairs)
