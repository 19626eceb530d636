"""Decide whether ranks share the samples of an epoch, and whether the next has a new order. Pure.

Indices alone prove little: a dataset that every rank has divided before has the same indices on all
of them. So a sample counts as read twice only where its content, or its label, is the same too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import Finding
from paceline.launch.probe.orders import is_mixed
from paceline.measure.verify import replicas
from paceline.measure.verify.records import (
    ComparisonVerdict,
    LoopRecord,
    RecordedFigure,
    RecordedWorld,
    broken,
    kept,
    not_judged,
)

_LEAST_COMMON = 8  # samples that several ranks have read, to compare their content
_LEAST_DISTINCT = 3  # hashes of them
_LEAST_BATCHES = 4  # of a loader: a padded share of fewer may be almost the whole dataset
_WHOLE = 0.9  # of a dataset, that a loader reads of it if it drops the last batch
_LEAST_SHARE = 0.75  # of the samples of an epoch on one rank; with fewer, samples are left out


def judge_shares(world: RecordedWorld) -> ComparisonVerdict:
    """Decide whether every sample is read once in an epoch, over all ranks."""
    split = world.found("data-not-shardable")
    if split is not None:
        return broken(split)
    reason = _unknown(world)
    if reason:
        return not_judged(reason)
    epochs = [rank.epochs[0] for rank in world.ranks]
    orders = [epoch.indices or [] for epoch in epochs]
    shares = [set(order) for order in orders]
    samples = set.union(*shares)
    if any(len(share) < len(order) - 1 for share, order in zip(shares, orders, strict=True)):
        return not_judged("a rank reads samples several times, as draws with replacement do")
    repeated = sum(map(len, orders)) - len(samples)
    if not repeated:
        return kept(f"{len(samples):,} samples, each once")
    has_parts = not any(_covers(epoch) for epoch in epochs) and any(
        share != samples for share in shares
    )
    if has_parts and repeated < _most_padding(epochs):
        return kept(f"{len(samples):,} samples, {repeated} repeated so that ranks have as many")
    # Equal indices may be those of a part that each rank has for itself: whether the contents are
    # equal too, the launcher has seen while the ranks ran.
    if all(order == orders[0] for order in orders):
        finding = world.found("same-data-on-all-ranks")
        if finding is not None:
            return broken(finding)
        return not_judged("ranks read the same samples in the same order; each may take a part")
    return _judge_overlap(world, epochs, samples)


def _unknown(world: RecordedWorld) -> str:
    """Return why nothing can be said about the samples; empty if something can."""
    if not all(rank.epochs for rank in world.ranks):
        return "no DataLoader was seen whose batches are trained on"
    epochs = [rank.epochs[0] for rank in world.ranks]
    if any(epoch.indices is None for epoch in epochs):
        return "the loader has no indices of samples, as a stream"
    if len({epoch.key for epoch in epochs}) > 1:
        return "ranks have datasets of different lengths"
    return ""


def _covers(epoch: LoopRecord) -> bool:
    """Return whether a loader alone reads the whole dataset; not known of a few batches."""
    most = max((len(batch or ()) for batch in epoch.batches), default=0)
    is_whole = epoch.num_batches * most >= _WHOLE * epoch.view_length
    return epoch.num_batches >= _LEAST_BATCHES and is_whole


def _most_padding(epochs: Sequence[LoopRecord]) -> int:
    """Return how many samples are repeated at most so that all ranks have as many batches."""
    return sum(max(len(batch or ()) for batch in epoch.batches) for epoch in epochs) + 1


def _judge_overlap(
    world: RecordedWorld, epochs: Sequence[LoopRecord], samples: set[int]
) -> ComparisonVerdict:
    """Decide about ranks that read some samples in common, in different orders."""
    if not all(_covers(epoch) and epoch.view_length == epoch.dataset_length for epoch in epochs):
        return not_judged("ranks have some samples in common, and each reads a part of the dataset")
    if not _are_same_samples(epochs):
        return not_judged("an index may stand for another sample on each rank")
    training = replicas.main_training(world)
    if training is None or not replicas.are_averaged(training):
        return not_judged("every rank reads the whole dataset; ranks train apart")
    return broken(_unshared(world, epochs, samples))


def _are_same_samples(epochs: Sequence[LoopRecord]) -> bool:
    """Return whether the same index stands for the same sample on all ranks."""
    first = epochs[0].rows
    pairs = [
        (first[index], epoch.rows[index])
        for epoch in epochs[1:]
        for index in first.keys() & epoch.rows.keys()
    ]
    if len(pairs) < _LEAST_COMMON or len({len(row) for pair in pairs for row in pair}) > 1:
        return False
    columns = range(len(pairs[0][0]))
    return any(
        all(one[column] == other[column] for one, other in pairs)
        and len({one[column] for one, _ in pairs}) >= _LEAST_DISTINCT
        for column in columns
    )


def _unshared(world: RecordedWorld, epochs: Sequence[LoopRecord], samples: set[int]) -> Finding:
    return Finding(
        "sampler-missing",
        f"every one of {world.size} ranks reads the whole dataset in each epoch",
        where=epochs[0].line_to_change,
        evidence=(
            (
                f"{epochs[0].dataset} of {epochs[0].dataset_length:,} samples: each rank's loader"
                f" has {epochs[0].num_batches:,} batches"
            ),
            (
                f"{sum(len(epoch.indices or ()) for epoch in epochs):,} samples were read in the"
                f" first epoch, {len(samples):,} different ones"
            ),
        ),
        why=f"an epoch on {world.size} ranks is {world.size} epochs, and takes as long as on one",
        fix=(
            "DataLoader(..., sampler=DistributedSampler(dataset)), or session.loader(dataset,"
            " batch_size=...)"
        ),
        severity="warning",
    )


def judge_order(world: RecordedWorld) -> ComparisonVerdict:
    """Decide whether a shuffled loader has a new order in each epoch."""
    finding = world.found("same-order-each-epoch")
    if finding is not None:
        return broken(_with_place(finding, world))
    reason = _unknown(world)
    if reason:
        return not_judged(reason)
    pairs = [
        (one.indices or [], other.indices or [])
        for rank in world.ranks
        for one, other in zip(rank.epochs, rank.epochs[1:], strict=False)
        if one.key == other.key
    ]
    if not pairs:
        return not_judged("no second epoch was seen")
    # The last epoch may have been cut off by the limit of steps.
    pairs = [(one[: len(other)], other[: len(one)]) for one, other in pairs]
    if not all(is_mixed(one) for one, _ in pairs):
        return not_judged("the order is not shuffled, or too short")
    if any(one == other for one, other in pairs):
        return not_judged("an order is repeated; several trainings may have one order")
    return kept("epochs have different orders")


def _with_place(finding: Finding, world: RecordedWorld) -> Finding:
    """Return the launcher's finding with the line of the loop."""
    places = [epoch.place for epoch in world.ranks[0].epochs if epoch.place]
    return replace(finding, where=f"{places[0]}, {finding.where}") if places else finding


def judge_epoch(world: RecordedWorld, one: RecordedWorld) -> ComparisonVerdict:
    """Decide whether an epoch has the samples that it has on one rank."""
    reason = _unknown(world) or _unknown(one)
    if reason:
        return not_judged(reason)
    epochs, reference = [rank.epochs[0] for rank in world.ranks], one.ranks[0].epochs[0]
    if not all(epoch.has_ended for epoch in (*epochs, reference)):
        return not_judged("no epoch has ended within the steps")
    if epochs[0].key != reference.key:
        return not_judged("the dataset has another length than on 1 rank")
    orders = [epoch.indices or [] for epoch in epochs]
    samples, expected = set.union(*map(set, orders)), set(reference.indices or ())
    missing = len(expected - samples)
    if missing <= _most_padding(epochs):
        return kept(f"{len(samples):,} samples in {len(epochs[0].batches):,} batches a rank")
    # Samples that are also read twice are another fault, which judge_shares names.
    is_disjoint = sum(map(len, orders)) == len(samples)
    if len(samples) < _LEAST_SHARE * len(expected) and is_disjoint:
        return broken(_shorter(world, epochs, samples, expected))
    return not_judged(f"{missing:,} samples of an epoch on 1 rank are not read")


def _shorter(
    world: RecordedWorld, epochs: Sequence[LoopRecord], samples: set[int], expected: set[int]
) -> Finding:
    return Finding(
        "epoch-differs",
        f"an epoch on {world.name} reads {len(samples):,} samples, and {len(expected):,} on 1 rank",
        where=epochs[0].line_to_change,
        evidence=(
            f"no sample is read twice, and {len(expected - samples):,} are read by no rank",
            f"each rank reads {len(epochs[0].indices or ()):,} samples",
        ),
        why="training is shorter than planned, and some samples are left out",
        fix="divide the samples once: either the framework's loader or a sampler of the script",
        severity="warning",
    )


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
class RecordedEvaluation:
    """An evaluation, as the ranks have read it."""

    loops: Mapping[int, LoopRecord]  # the loop of each rank that takes part, by rank
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


def evaluations(world: RecordedWorld, one: RecordedWorld | None) -> list[RecordedEvaluation]:
    """Return the first whole evaluation of each dataset in each line of the script."""
    by_rank = [_whole(rank.evaluations) for rank in world.ranks]
    alone = _whole(one.ranks[0].evaluations) if one is not None else {}
    kinds = []
    for key in {key: None for keys in by_rank for key in keys}:
        loops = {rank: keys[key] for rank, keys in enumerate(by_rank) if key in keys}
        reference = alone.get(key)
        samples = frozenset(reference.indices or ()) if reference is not None else frozenset()
        kinds.append(RecordedEvaluation(loops, samples))
    return kinds


def _whole(loops: list[LoopRecord]) -> dict[Kind, LoopRecord]:
    """Return the first loop of each kind that was read to its end, and has indices."""
    whole: dict[Kind, LoopRecord] = {}
    for loop in loops:
        if loop.has_ended and loop.indices is not None:
            whole.setdefault(_kind(loop), loop)
    return whole


def _kind(loop: LoopRecord) -> Kind:
    """Return what the loops of all ranks over one evaluation have in common."""
    return (*loop.key, loop.place)


def judge_count(world: RecordedWorld, one: RecordedWorld | None) -> ComparisonVerdict:
    """Decide whether each sample of an evaluation is counted once."""
    verdicts = [_judge_count(world, evaluation) for evaluation in evaluations(world, one)]
    return _gravest(verdicts, "no whole evaluation over a DataLoader was seen")


def _gravest(verdicts: list[ComparisonVerdict], otherwise: str) -> ComparisonVerdict:
    with_finding = [verdict for verdict in verdicts if verdict.finding is not None]
    unknown = [verdict for verdict in verdicts if verdict.state != "kept"]
    return (with_finding or unknown or verdicts or [not_judged(otherwise)])[0]


def _judge_count(world: RecordedWorld, evaluation: RecordedEvaluation) -> ComparisonVerdict:
    expected, total = len(evaluation.expected), evaluation.total
    if not expected:
        return not_judged("the same evaluation was not seen on 1 rank")
    if not evaluation.is_shared:
        return kept(f"a rank evaluates all {expected:,} samples itself")
    loops = evaluation.loops.values()
    if evaluation.samples == evaluation.expected and total == expected:
        return kept(f"{expected:,} samples, each on one rank")
    # A sampler must give all ranks as many samples; some frameworks drop the repeated results.
    if all(loop.is_session for loop in loops):
        return kept(f"{expected:,} samples; Session counts each once")
    if evaluation.samples != evaluation.expected:
        missing = len(evaluation.expected - evaluation.samples)
        return not_judged(f"{missing:,} samples are not read in this loop, maybe in another")
    if all(loop.trimmed for loop in loops):
        return kept(f"{expected:,} samples; gather_for_metrics drops {total - expected:,} repeated")
    is_cut = any(loop.trimmed for loop in loops) or not all(loop.scored for loop in loops)
    if is_cut or _is_trained_on(world, evaluation):
        return not_judged(f"of {expected:,} samples {total:,} are read; results may be cut")
    return broken(_padded(world, evaluation))


def _is_trained_on(world: RecordedWorld, evaluation: RecordedEvaluation) -> bool:
    """Return whether samples are trained on too: statistics of them are not a score."""
    loop = next(iter(evaluation.loops.values()))
    return any(
        epoch.key == loop.key and evaluation.samples & set(epoch.indices or ())
        for rank in world.ranks
        for epoch in rank.epochs
    )


def _padded(world: RecordedWorld, evaluation: RecordedEvaluation) -> Finding:
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


def judge_figure(world: RecordedWorld, one: RecordedWorld | None) -> ComparisonVerdict:
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


def _judge_line(
    printed: RecordedFigure, loop: LoopRecord, evaluation: RecordedEvaluation
) -> ComparisonVerdict:
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


def _of_a_share(
    printed: RecordedFigure, loop: LoopRecord, evaluation: RecordedEvaluation
) -> Finding:
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
