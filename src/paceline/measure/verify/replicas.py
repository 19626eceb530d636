"""Decide whether all ranks have the same parameters after each step. Pure.

Ranks that apply the same gradients in every step are meant to have the same parameters. Others may
average parameters now and then. Where nothing of theirs ever meets, each trains a model of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import Finding
from paceline.machine import agreement
from paceline.machine.agreement import Parameters
from paceline.measure.verify import averaging
from paceline.measure.verify.records import Training, World
from paceline.measure.verify.verdict import Verdict, broken, kept, not_judged

_STEPS_BEFORE = 2  # of which gradients are compared at least


def judge(world: World) -> Verdict:
    """Decide whether ranks keep the same parameters, for every optimizer that they have."""
    optimizers = averaging.trainings(world)
    if not optimizers:
        finding = _unstepped(world)
        return broken(finding) if finding else not_judged("no optimizer step was seen on all ranks")
    verdicts = [_judge_one(ranks, is_apart=world.is_apart) for ranks in optimizers]
    findings = [verdict for verdict in verdicts if verdict.finding is not None]
    unknown = [verdict for verdict in verdicts if verdict.state != "kept"]
    return (findings or unknown or verdicts)[0]


def _judge_one(ranks: Sequence[Training], *, is_apart: bool) -> Verdict:
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
    if not averaging.are_averaged(ranks, until=max(differing[0], _STEPS_BEFORE)):
        if is_apart:
            return not_judged("ranks train apart (--apart)")
        if averaging.is_each_alone(ranks):
            return broken(_each_alone(ranks))
        return not_judged("parameters differ, and so do gradients: ranks may train apart")
    return broken(_differ(ranks, differing[0]))


def _each_alone(ranks: Sequence[Training]) -> Finding:
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
            f"{first.type} steps {first.num_elements:,} parameters of the same names on all ranks;"
            f" after each of {len(first.steps):,} steps they differ",
            "no collective has averaged gradients, and nothing else has changed the parameters",
            f"{'a' if are_held else 'no'} DistributedDataParallel holds them",
        ),
        why="what rank 0 saves has learned from its own samples only",
        fix=call if are_held else wrap,
        severity="warning",
    )


def _unstepped(world: World) -> Finding | None:
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


def _differ(ranks: Sequence[Training], step: int) -> Finding:
    is_unlike_from_start = step == 0 and not all(training.is_parallel for training in ranks)
    if is_unlike_from_start:
        return _other_start(ranks)
    finding = agreement.replicas(_groups(ranks, step), step=step)
    assert finding is not None
    return finding


def _groups(ranks: Sequence[Training], step: int) -> list[Parameters]:
    """Return the groups of ranks that agree in all parameters."""
    members: dict[int | None, list[int]] = {}
    for rank, training in enumerate(ranks):
        members.setdefault(training.checksums[step], []).append(rank)
    return [_group(ranks[group[0]], step, group) for group in members.values()]


def _group(training: Training, step: int, members: Sequence[int]) -> Parameters:
    sums = training.sums.get(step, ())
    names = training.names if len(training.names) == len(sums) else ()
    return Parameters(tuple(members), names=names, sums=sums if names else ())


def _other_start(ranks: Sequence[Training]) -> Finding:
    return Finding(
        "initialisation-differs",
        "ranks begin with different parameters, and apply the same gradients to them",
        where=ranks[0].place,
        evidence=(
            "parameters differ before the first step; the gradients of the first steps are equal",
            "no DistributedDataParallel holds the parameters, which would broadcast those of rank"
            " 0",
        ),
        why="each rank trains another model, with gradients averaged over all of them",
        fix="torch.manual_seed(0) before the model is built, or DistributedDataParallel(model)",
        severity="warning",
    )
