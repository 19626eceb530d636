"""Decide whether all ranks have the same parameters after each step. Pure.

Ranks that apply the same gradients in every step are meant to have the same parameters. Others,
which train apart or average parameters now and then, are not judged.
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
        return not_judged("no optimizer step was seen on all ranks")
    verdicts = [_judge_one(ranks) for ranks in optimizers]
    findings = [verdict for verdict in verdicts if verdict.finding is not None]
    unknown = [verdict for verdict in verdicts if verdict.state != "kept"]
    return (findings or unknown or verdicts)[0]


def _judge_one(ranks: Sequence[Training]) -> Verdict:
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
        return not_judged("parameters differ, and so do gradients: ranks may train apart")
    return broken(_differ(ranks, differing[0]))


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
