"""Decide whether ranks train one model together, and whether their parameters are equal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import Finding
from paceline.machine import agreement
from paceline.machine.agreement import Parameters
from paceline.measure.verify.records import (
    ComparisonVerdict,
    RecordedTraining,
    RecordedWorld,
    broken,
    kept,
    not_judged,
)

_LEAST_STEPS = 2
_LEAST_SHARE = 0.5  # of the steps: after a skipped step the numbers of two ranks differ by one


def trainings(world: RecordedWorld) -> list[tuple[RecordedTraining, ...]]:
    """Return the optimizers that all ranks have, each as its records of every rank."""
    numbers = set.intersection(*(set(rank.trainings) for rank in world.ranks))
    return [
        _in_step([rank.trainings[number] for rank in world.ranks]) for number in sorted(numbers)
    ]


def _in_step(ranks: Sequence[RecordedTraining]) -> tuple[RecordedTraining, ...]:
    """Return the steps that ranks make together: all, or those before an epoch ends on one alone.

    Under torch's Join, a rank whose samples are used up waits for the others.
    """
    lengths = [sum(step.loop == rank.steps[0].loop for step in rank.steps) for rank in ranks]
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


def main_training(world: RecordedWorld) -> tuple[RecordedTraining, ...] | None:
    """Return the optimizer with the most steps of those that all ranks have; None without one."""
    return max(trainings(world), key=lambda ranks: len(ranks[0].steps), default=None)


def are_averaged(ranks: Sequence[RecordedTraining], *, until: int | None = None) -> bool:
    """Return whether ranks apply equal gradients, up to a step, which differ from step to step."""
    gradients = _gradients(ranks, until=until)
    equal = [values[0] for values in gradients if len(set(values)) == 1 and values[0] is not None]
    is_enough = len(equal) >= min(_LEAST_STEPS, len(gradients)) and len(equal) > 0
    has_changed = len(set(equal)) >= min(_LEAST_STEPS, len(equal))
    return is_enough and has_changed and len(equal) >= _LEAST_SHARE * len(gradients)


def are_apart(ranks: Sequence[RecordedTraining]) -> bool:
    """Return whether each rank applies its own gradients, to the parameters of the same model."""
    is_one_model = len({training.names for training in ranks}) == 1
    if not is_one_model or not all(training.is_whole for training in ranks):
        return False
    gradients = _gradients(ranks)
    differing = [values for values in gradients if len(set(values)) > 1 and None not in values]
    return len(differing) > (1 - _LEAST_SHARE) * len(gradients)


def is_each_alone(ranks: Sequence[RecordedTraining]) -> bool:
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


def _is_untouched(training: RecordedTraining) -> bool:
    """Return whether only its own steps have changed parameters, with gradients of this rank."""
    checksums = training.checksums
    return not any(step.exchanged for step in training.steps) and all(
        step.after == checksums.get(step.number, step.after) for step in training.steps
    )


def _gradients(
    ranks: Sequence[RecordedTraining], *, until: int | None = None
) -> list[list[int | None]]:
    """Return the gradients that ranks have applied, by step and rank, as they were recorded."""
    steps = zip(*(training.steps[:until] for training in ranks), strict=False)
    return [[step.gradients for step in of_ranks] for of_ranks in steps]


_STEPS_BEFORE = 2  # of which gradients are compared at least


def judge(world: RecordedWorld, one: RecordedWorld | None = None) -> ComparisonVerdict:
    """Decide whether ranks keep the same parameters, for every optimizer that they have."""
    optimizers = trainings(world)
    if one is not None and _are_parts(optimizers, trainings(one)):
        return not_judged("parameters are divided among ranks")
    if not optimizers:
        finding = _unstepped(world)
        return broken(finding) if finding else not_judged("no optimizer step was seen on all ranks")
    verdicts = [_judge_one(ranks, is_apart=world.is_apart) for ranks in optimizers]
    findings = [verdict for verdict in verdicts if verdict.finding is not None]
    unknown = [verdict for verdict in verdicts if verdict.state != "kept"]
    return (findings or unknown or verdicts)[0]


def _are_parts(
    optimizers: Sequence[Sequence[RecordedTraining]], of_one: Sequence[Sequence[RecordedTraining]]
) -> bool:
    """Return whether a rank has parameters of the same names, and fewer values of them."""
    pairs = [(ranks[0], one[0]) for ranks, one in zip(optimizers, of_one, strict=False)]
    return any(a.names == b.names and a.num_elements < b.num_elements for a, b in pairs)


def _judge_one(ranks: Sequence[RecordedTraining], *, is_apart: bool) -> ComparisonVerdict:
    if not all(training.is_whole for training in ranks):
        return not_judged("parameters are divided among ranks")
    steps = sorted(set.intersection(*(set(training.checksums) for training in ranks)))
    if any(training.checksums[step] is None for training in ranks for step in steps):
        return not_judged("the optimizer has no parameters")
    differing = [
        step for step in steps if len({training.checksums[step] for training in ranks}) > 1
    ]
    if not differing:
        return kept(f"compared before each of {len(steps):,} steps")
    if not are_averaged(ranks, until=max(differing[0], _STEPS_BEFORE)):
        if is_apart:
            return not_judged("ranks train apart (--apart)")
        if is_each_alone(ranks):
            return broken(_each_alone(ranks))
        return not_judged("parameters differ, and so do gradients: ranks may train apart")
    return broken(_differ(ranks, differing[0]))


def _each_alone(ranks: Sequence[RecordedTraining]) -> Finding:
    first, are_held = ranks[0], ranks[0].is_parallel
    wrap = (
        "DistributedDataParallel(model), fabric.setup or accelerator.prepare; on purpose: --apart"
    )
    call = "model(x), not model.module(x); no no_sync at a step; Lightning: self.manual_backward"
    return Finding(
        "gradients-not-averaged",
        f"each of {len(ranks)} ranks trains a model of its own",
        where=first.place,
        evidence=(
            *([f"first: {first.names[-1]}"] if first.names else []),
            f"{first.type} steps {first.num_elements:,} parameters of the same names on all ranks;"
            f" after each of {len(first.steps):,} steps they differ",
            "no collective has averaged gradients, and nothing else has changed the parameters",
            f"{'a' if are_held else 'no'} DistributedDataParallel holds them",
        ),
        why="what rank 0 saves has learned from its own samples only",
        fix=call if are_held else wrap,
        severity="warning",
    )


def _unstepped(world: RecordedWorld) -> Finding | None:
    """Return the finding that ranks make no step on parameters that others step."""
    stepped = [
        training
        for rank in world.ranks
        for training in rank.trainings.values()
        if training.is_parallel and len(set(training.checksums.values())) > 1
    ]
    still = [
        number
        for number, rank in enumerate(world.ranks)
        if len(rank.unstepped) >= _STEPS_BEFORE and len(set(rank.unstepped)) == 1
    ]
    if not stepped or not still:
        return None
    return Finding(
        "replicas-differ",
        f"rank {still[0]} makes no optimizer step, and others do",
        where=stepped[0].place,
        evidence=("DistributedDataParallel holds the parameters: it averages gradients only",),
        why="from the second step on, ranks compute the gradients of different models",
        fix="optimizer.step() on every rank, outside of `if rank == 0:`",
        severity="warning",
    )


def _differ(ranks: Sequence[RecordedTraining], step: int) -> Finding:
    is_unlike_from_start = step == 0 and not all(training.is_parallel for training in ranks)
    if is_unlike_from_start:
        return _other_start(ranks)
    finding = agreement.replicas(_groups(ranks, step), step=step)
    assert finding is not None
    return finding


def _groups(ranks: Sequence[RecordedTraining], step: int) -> list[Parameters]:
    """Return the groups of ranks that agree in all parameters."""
    members: dict[int | None, list[int]] = {}
    for rank, training in enumerate(ranks):
        members.setdefault(training.checksums[step], []).append(rank)
    return [_group(ranks[group[0]], step, group) for group in members.values()]


def _group(training: RecordedTraining, step: int, members: Sequence[int]) -> Parameters:
    sums = training.sums.get(step, ())
    names = training.names if len(training.names) == len(sums) else ()
    return Parameters(tuple(members), names=names, sums=sums if names else ())


def _other_start(ranks: Sequence[RecordedTraining]) -> Finding:
    differ = agreement.replicas(_groups(ranks, 0), step=0)
    names = [line for line in (differ.evidence if differ else ()) if line.startswith("first: ")]
    return Finding(
        "initialisation-differs",
        "ranks begin with different parameters, and apply the same gradients to them",
        where=ranks[0].place,
        evidence=(
            *names,
            "parameters differ before the first step; the gradients of the first steps are equal",
            "no DistributedDataParallel holds the parameters, which would broadcast those of rank"
            " 0",
        ),
        why="each rank trains another model, with gradients averaged over all of them",
        fix="torch.manual_seed(0) before the model is built, or DistributedDataParallel(model)",
        severity="warning",
    )
