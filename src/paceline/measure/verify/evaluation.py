"""Decide whether evaluations count each sample once, and whose figure rank 0 prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import Finding
from paceline.measure.verify.records import Loop, Printed, World
from paceline.measure.verify.verdict import Verdict, broken, kept, not_judged

# A name of a score, and the number that follows it; not a time, a rate of a progress bar or a size.
_SCORE = re.compile(
    r"(?<![a-z])(?:val|test|eval|acc|score|f1|auc|top.?[15]|m?iou|bleu|ppl|perplexity|precision"
    r"|recall|r?mse|mae)(?P<between>[^\d\n]{0,24})\d*\.\d+"
    r"(?!\d|\s*(?:it/s|s/it|s\b|ms\b|sec|min|h\b|/s|[KMGkm]i?B))",
    re.IGNORECASE,
)
_OTHER_FIGURE = re.compile(r"lr|rate|time|took|train|memory|second|speed", re.IGNORECASE)
Kind = tuple[str, int, str]  # type and length of the dataset, line of the script
_MOST_SHARE = 0.9  # of the samples, that a rank which evaluates a share has read


@dataclass(frozen=True)
class Evaluation:
    """An evaluation, as the ranks have read it."""

    loops: Mapping[int, Loop]  # the loop of each rank that takes part, by rank
    expected: frozenset[int]  # the samples that one rank alone evaluates

    @property
    def total(self) -> int:
        """Number of samples that were read, over all ranks."""
        return sum(loop.samples for loop in self.loops.values())

    @property
    def samples(self) -> frozenset[int]:
        """The samples that were read by any rank."""
        return frozenset(index for loop in self.loops.values() for index in loop.indices or ())

    @property
    def is_shared(self) -> bool:
        """Whether every rank reads a part of it."""
        most = _MOST_SHARE * len(self.expected)
        return len(self.loops) > 1 and all(loop.samples < most for loop in self.loops.values())


def evaluations(world: World, one: World | None) -> list[Evaluation]:
    """Return the first whole evaluation of each dataset in each line of the script."""
    by_rank = [_whole(rank.evaluations) for rank in world.ranks]
    alone = _whole(one.ranks[0].evaluations) if one is not None else {}
    kinds = []
    for key in {key: None for keys in by_rank for key in keys}:
        loops = {rank: keys[key] for rank, keys in enumerate(by_rank) if key in keys}
        reference = alone.get(key)
        samples = frozenset(reference.indices or ()) if reference is not None else frozenset()
        kinds.append(Evaluation(loops, samples))
    return kinds


def _whole(loops: list[Loop]) -> dict[Kind, Loop]:
    """Return the first loop of each kind that was read to its end, and has indices."""
    whole: dict[Kind, Loop] = {}
    for loop in loops:
        if loop.has_ended and loop.indices is not None:
            whole.setdefault(_kind(loop), loop)
    return whole


def _kind(loop: Loop) -> Kind:
    """Return what the loops of all ranks over one evaluation have in common."""
    return (*loop.key, loop.place)


def judge_count(world: World, one: World | None) -> Verdict:
    """Decide whether each sample of an evaluation is counted once."""
    verdicts = [_judge_count(world, evaluation) for evaluation in evaluations(world, one)]
    return _gravest(verdicts, "no whole evaluation over a DataLoader was seen")


def _gravest(verdicts: list[Verdict], otherwise: str) -> Verdict:
    with_finding = [verdict for verdict in verdicts if verdict.finding is not None]
    unknown = [verdict for verdict in verdicts if verdict.state != "kept"]
    return (with_finding or unknown or verdicts or [not_judged(otherwise)])[0]


def _judge_count(world: World, evaluation: Evaluation) -> Verdict:
    expected, total = len(evaluation.expected), evaluation.total
    if not expected:
        return not_judged("the same evaluation was not seen on 1 rank")
    if not evaluation.is_shared:
        return kept(f"a rank evaluates all {expected:,} samples itself")
    loops = evaluation.loops.values()
    if evaluation.samples == evaluation.expected and total == expected:
        return kept(f"{expected:,} samples, each on one rank")
    if all(loop.is_session for loop in loops):
        return kept(f"{expected:,} samples; Session counts each once")
    if evaluation.samples != evaluation.expected:
        missing = len(evaluation.expected - evaluation.samples)
        return not_judged(f"{missing:,} samples are not read in this loop, maybe in another")
    if all(loop.trimmed for loop in loops):
        return kept(f"{expected:,} samples; gather_for_metrics drops {total - expected:,} repeated")
    is_cut = any(loop.trimmed for loop in loops) or not all(loop.scored for loop in loops)
    if is_cut or _is_trained_on(world, evaluation):
        return not_judged(f"{total - expected:,} samples are repeated; results may be cut")
    return broken(_padded(world, evaluation))


def _is_trained_on(world: World, evaluation: Evaluation) -> bool:
    """Return whether samples are trained on too: statistics of them are not a score."""
    loop = next(iter(evaluation.loops.values()))
    return any(
        epoch.key == loop.key and evaluation.samples & set(epoch.indices or ())
        for rank in world.ranks
        for epoch in rank.epochs
    )


def _padded(world: World, evaluation: Evaluation) -> Finding:
    expected, total = len(evaluation.expected), evaluation.total
    first = next(iter(evaluation.loops.values()))
    return Finding(
        "evaluation-padded",
        f"an evaluation of {expected:,} samples counts {total:,} on {world.name}",
        where=first.line_to_change,
        evidence=(
            f"its sampler repeats {total - expected:,}, so that all ranks have as many",
            "figures of the shares were combined after the loop",
        ),
        why="the repeated samples count twice, and the score depends on the number of ranks",
        fix=(
            "DataLoader(Subset(dataset, range(rank, len(dataset), world_size))), and sums divided"
            " by counts; Accelerate: gather_for_metrics"
        ),
        severity="warning",
    )


def judge_figure(world: World, one: World | None) -> Verdict:
    """Decide whether the figures that rank 0 prints are those of all samples."""
    rank = world.ranks[0]
    by_kind = {
        _kind(evaluation.loops[0]): evaluation
        for evaluation in evaluations(world, one)
        if 0 in evaluation.loops and evaluation.expected
    }
    printed_after = [
        (line, rank.loops[line.loop]) for line in rank.printed if line.loop in rank.loops
    ]
    verdicts = [
        _judge_line(line, loop, by_kind[_kind(loop)])
        for line, loop in printed_after
        if _kind(loop) in by_kind
    ]
    return _gravest(verdicts, "no figure was printed after an evaluation")


def _judge_line(printed: Printed, loop: Loop, evaluation: Evaluation) -> Verdict:
    if not evaluation.is_shared:
        return kept("rank 0 evaluates all samples")
    if printed.combined or loop.combined:
        return kept("ranks combine their results before rank 0 prints")
    if not is_score(printed.line):
        return not_judged("what rank 0 prints does not look like a score")
    return broken(_of_a_share(printed, loop, evaluation))


def is_score(line: str) -> bool:
    """Return whether a line shows a score of an evaluation."""
    matches = _SCORE.finditer(line)
    return any(not _OTHER_FIGURE.search(match["between"]) for match in matches)


def _of_a_share(printed: Printed, loop: Loop, evaluation: Evaluation) -> Finding:
    return Finding(
        "evaluation-not-reduced",
        f"rank 0 prints a figure of {loop.samples:,} of {len(evaluation.expected):,} samples",
        where=printed.place,
        evidence=(
            f"printed: {printed.line}",
            f"the evaluation in {loop.place} is shared by {len(evaluation.loops)} ranks",
            "nothing was reduced or gathered between the evaluation and the line",
        ),
        why="the figure is that of rank 0's share, and changes with the number of ranks",
        fix=(
            "totals = torch.tensor([correct, count]); dist.all_reduce(totals); Lightning:"
            " self.log(..., sync_dist=True)"
        ),
        severity="warning",
    )
