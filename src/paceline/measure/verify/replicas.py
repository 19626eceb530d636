"""Decide whether all ranks have the same parameters after each step. Pure.

Ranks that apply the same gradients in every step are meant to have the same parameters. Others may
average parameters now and then. Where nothing of theirs ever meets, each trains a model of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import Finding
from paceline.launch.monitor import observations
from paceline.launch.monitor.observations import Parameters
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
    first = ranks[0]
    is_held = first.is_parallel
    holder = "DistributedDataParallel holds them" if is_held else "no DistributedDataParallel holds"
    return Finding(
        "gradients-not-averaged",
        f"each of {len(ranks)} ranks trains a model of its own",
        where=first.place,
        evidence=(
            f"{first.type} steps {first.num_elements:,} parameters of the same names on all ranks;"
            f" after each of {len(first.steps):,} steps they differ",
            "no collective has averaged the gradients, and nothing else has changed the parameters",
            f"{holder}, but averages in the backward of its own forward"
            if is_held
            else f"{holder} them",
        ),
        why="a rank learns from its own samples only: rank 0 saves nothing of the others'",
        fix=(
            "call the model that DDP, fabric.setup or accelerator.prepare returned, not the one"
            " inside; the last backward before a step outside of no_sync; manual_backward(loss)"
            if is_held
            else "model = DistributedDataParallel(model); fabric.setup(model, optimizer);"
            " accelerator.prepare(model, optimizer); ranks that train apart on purpose: --apart"
        ),
        severity="warning",
    )


def _unstepped(world: World) -> Finding | None:
    """Return the finding that some ranks make steps on a model which all of them hold."""
    stepped = [
        rank
        for rank, records in enumerate(world.ranks)
        if any(
            part.is_parallel and len(set(part.checksums.values())) > 1
            for part in records.trainings.values()
        )
    ]
    still = [
        rank
        for rank, records in enumerate(world.ranks)
        if len(records.unstepped) >= _STEPS_BEFORE and len(set(records.unstepped)) == 1
    ]
    if not stepped or not still:
        return None
    training = next(part for part in world.ranks[stepped[0]].trainings.values() if part.is_parallel)
    return Finding(
        "replicas-differ",
        f"rank {stepped[0]} makes optimizer steps, and rank {still[0]} makes none",
        where=training.place,
        evidence=(
            "DistributedDataParallel holds the parameters on all ranks, and averages gradients",
            f"those of rank {still[0]} have not changed in {len(world.ranks[still[0]].unstepped):,}"
            " backwards",
        ),
        why="ranks compute gradients of different models from the second step on",
        fix="optimizer.step() on every rank, outside of `if rank == 0:`",
        severity="warning",
    )


def _differ(ranks: Sequence[Training], step: int) -> Finding:
    is_unlike_from_start = step == 0 and not all(training.is_parallel for training in ranks)
    if is_unlike_from_start:
        return _other_start(ranks)
    finding = observations.replicas(_groups(ranks, step), step=step)
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
