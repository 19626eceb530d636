"""Decide whether the learning rate on several ranks follows that on one. Pure.

A schedule may be written in steps or in epochs. On N ranks with N times the batch, the first has
the same rate after as many steps, the second after as many samples. Both are right, up to a
factor by which the rate is scaled. What fits neither, and is stepped N times as often, is a fault.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from paceline.errors import Finding
from paceline.measure.verify import replicas
from paceline.measure.verify.records import (
    ComparisonVerdict,
    RecordedStep,
    RecordedTraining,
    RecordedWorld,
    broken,
    kept,
    not_judged,
)

_CLOSE = 0.02  # relative: rounded lengths of epochs move a schedule a little
_GROWN = 1.5  # from this factor on, a batch has grown
_OFTEN = 0.9  # of N times as many calls of a scheduler
SAME_BATCH = "ranks read the same first batch; each may take a part of it"


class Curves(NamedTuple):
    """The learning rates of one parameter group, and the batches of both numbers of ranks."""

    rates: tuple[float, ...]  # its rate in each step on several ranks
    reference: tuple[float, ...]  # the same on one rank
    growth: float  # samples of a step, as a multiple of those on one rank
    epochs: int  # number of epochs that were seen on several ranks

    @property
    def scale(self) -> float:
        """The largest rate as a multiple of that on one rank, in as many samples."""
        return self.rates[0] / self.reference[0] if self.reference[0] else math.nan


def batch_of(world: RecordedWorld) -> int:
    """Return the samples of the first batches of all ranks; 0 if they are unknown."""
    epochs = [rank.epochs[0] for rank in world.ranks if rank.epochs]
    sizes = [len(epoch.batches[0] or ()) for epoch in epochs if epoch.batches]
    return sum(sizes) if len(sizes) == world.size and all(sizes) else 0


def read_the_same(world: RecordedWorld) -> bool:
    """Return whether several ranks have the same first batch."""
    first = {tuple(rank.epochs[0].batches[0] or ()) for rank in world.ranks}
    return len(first) < world.size


def _growth(
    batches: tuple[int, int],
    training: Sequence[RecordedTraining],
    reference: Sequence[RecordedTraining],
) -> float:
    """Return the samples of an update as a multiple of those on one rank.

    Batches that are accumulated count together: fewer of them may make up for more ranks.
    """
    batch_of_one, batch = batches
    backwards, of_one = (len(ranks[0].steps[0].losses) for ranks in (training, reference))
    has_closure = training[0].type == "LBFGS"  # computes as many losses as its search needs
    accumulated = 1.0 if has_closure or not backwards or not of_one else backwards / of_one
    return batch / batch_of_one * accumulated


def judge(world: RecordedWorld, one: RecordedWorld) -> ComparisonVerdict:
    """Decide whether the learning rate follows that on one rank."""
    training, reference = replicas.main_training(world), replicas.main_training(one)
    if training is None or reference is None:
        return not_judged("no optimizer step was seen")
    batch, batch_of_one = batch_of(world), batch_of(one)
    if not batch or not batch_of_one:
        return not_judged("the number of samples of a step is unknown")
    if read_the_same(world):
        return not_judged(SAME_BATCH)
    steps, steps_of_one = training[0].steps, reference[0].steps
    if not steps or not steps_of_one or len(steps[0].rates) != len(steps_of_one[0].rates):
        return not_judged("the optimizer has other parameter groups than on 1 rank")
    epochs = len(world.ranks[0].epochs)
    growth = _growth((batch_of_one, batch), training, reference)
    for group in range(len(steps[0].rates)):
        curves = Curves(_rates(steps, group), _rates(steps_of_one, group), growth, epochs)
        if not (_by_step(curves) or _by_sample(curves)):
            return _judge_other_curve(world, steps, steps_of_one, growth)
    first = Curves(_rates(steps, 0), _rates(steps_of_one, 0), growth, epochs)
    verdict = _judge_scale(world, first, place=training[0].place, batches=(batch_of_one, batch))
    # Ranks that do not average their gradients have no larger batch, and need no larger rate.
    if verdict.finding is not None and replicas.are_apart(training):
        return not_judged("ranks apply different gradients: they may train apart")
    return verdict


def _rates(steps: Sequence[RecordedStep], group: int) -> tuple[float, ...]:
    return tuple(step.rates[group] for step in steps)


def _by_step(curves: Curves) -> bool:
    """Return whether the rate after as many steps is the same, up to a factor."""
    pairs = list(zip(curves.rates, curves.reference, strict=False))
    return all(_is_close(rate, curves.scale * other, curves) for rate, other in pairs)


def _by_sample(curves: Curves) -> bool:
    """Return whether the rate after as many samples is the same, up to a factor."""
    # the last batch of an epoch is shorter, so each epoch may move the middle by one batch
    slack = math.ceil(curves.growth) * (curves.epochs + 1) + 1
    for number, rate in enumerate(curves.rates):
        middle = round(number * curves.growth)
        if middle - slack >= len(curves.reference):
            break
        near = curves.reference[max(0, middle - slack) : middle + slack + 1]
        low, high = curves.scale * min(near), curves.scale * max(near)
        is_inside = low <= rate <= high
        if not is_inside and not _is_close(rate, low, curves) and not _is_close(rate, high, curves):
            return False
    return True


def _is_close(rate: float, other: float, curves: Curves) -> bool:
    # Absolute too: at the start of a warm-up and the end of a cosine rates are near zero.
    return math.isclose(rate, other, rel_tol=_CLOSE, abs_tol=_CLOSE * max(curves.rates))


def _judge_other_curve(
    world: RecordedWorld,
    steps: Sequence[RecordedStep],
    steps_of_one: Sequence[RecordedStep],
    growth: float,
) -> ComparisonVerdict:
    """Decide about a schedule that fits neither: it is a fault if its scheduler is called more.

    A schedule that counts epochs is called more often in as many steps, since an epoch has fewer.
    """
    often = sum(step.schedules for step in steps) / len(steps)
    often_of_one = sum(step.schedules for step in steps_of_one) / len(steps_of_one)
    is_each_step = often_of_one >= _OFTEN
    expected = often_of_one if is_each_step else often_of_one * growth
    # It follows the loss, which differs with the number of ranks.
    is_by_score = world.ranks[0].schedule_type == "ReduceLROnPlateau"
    if is_by_score or not expected or often < _OFTEN * world.size * expected:
        return not_judged("the schedule is another one than on 1 rank")
    return broken(_stepped_too_often(world, steps, steps_of_one))


def _stepped_too_often(
    world: RecordedWorld, steps: Sequence[RecordedStep], steps_of_one: Sequence[RecordedStep]
) -> Finding:
    calls = sum(step.schedules for step in steps)
    calls_of_one = sum(step.schedules for step in steps_of_one)
    place = world.ranks[0].schedule
    return Finding(
        "scheduler-stepped-n-times",
        f"on {world.name} the scheduler is stepped {world.size} times as often as on 1 rank",
        where=place,
        evidence=(
            f"{calls:,} times in {len(steps):,} optimizer steps, on 1 rank {calls_of_one:,} times"
            f" in {len(steps_of_one):,}",
            f"the rate of step {len(steps)} is {steps[-1].rates[0]:.3g}; neither after as many"
            " steps nor after as many samples is it that of 1 rank",
        ),
        why="the learning rate falls too early, and the rest of the training has a tiny one",
        fix=(
            "step it once a step; Accelerate: give the schedule the steps of one process alone"
            " (len(loader) before prepare)"
        ),
        severity="warning",
    )


def _judge_scale(
    world: RecordedWorld, curves: Curves, *, place: str, batches: tuple[int, int]
) -> ComparisonVerdict:
    """Decide about the factor between two learning rates that follow the same schedule."""
    scale, growth = curves.scale, curves.growth
    is_same = math.isclose(scale, 1.0, rel_tol=_CLOSE)
    if is_same and growth >= _GROWN:
        return broken(_not_scaled(world, curves, place=place, batches=batches))
    if is_same:
        return kept(f"as on 1 rank in {len(curves.rates):,} steps")
    if growth < _GROWN:
        return not_judged(f"the rate is {scale:.3g} times that on 1 rank, with the same batch")
    return kept(f"{scale:.3g} times that on 1 rank, for {growth:.3g} times the batch")


def _not_scaled(
    world: RecordedWorld, curves: Curves, *, place: str, batches: tuple[int, int]
) -> Finding:
    return Finding(
        "learning-rate-not-scaled",
        f"{world.name} train with {curves.growth:.3g} times the batch of 1 rank, and the same"
        " learning rate",
        where=place,
        evidence=(
            f"samples of a batch: {batches[0]:,} on 1 rank, {batches[1]:,} on {world.name}",
            f"learning rate of the first step: {curves.rates[0]:.3g} on both",
        ),
        why="an epoch has fewer updates: the loss after as many epochs is likely higher",
        fix=f"batch_size = {batches[0]} // world_size for each rank, or scale the rate",
        severity="hint",
    )
