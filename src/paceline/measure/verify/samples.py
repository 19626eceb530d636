"""Decide whether ranks share the samples of an epoch, and whether the next has a new order. Pure.

Indices alone prove little: a dataset that every rank has divided before has the same indices on all
of them. So a sample counts as read twice only where its content, or its label, is the same too.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import Finding
from paceline.launch.probe.orders import is_mixed
from paceline.measure.verify import averaging
from paceline.measure.verify.records import Loop, World
from paceline.measure.verify.verdict import Verdict, broken, kept, not_judged

_LEAST_COMMON = 8  # samples that several ranks have read, to compare their content
_LEAST_DISTINCT = 3  # hashes of them
_LEAST_BATCHES = 4  # of a loader: a padded share of fewer may be almost the whole dataset
_WHOLE = 0.9  # of a dataset, that a loader reads of it if it drops the last batch
_LEAST_SHARE = 0.75  # of the samples of an epoch on one rank; with fewer, samples are left out


def judge_shares(world: World) -> Verdict:
    """Decide whether every sample is read once in an epoch, over all ranks."""
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
    if all(order == orders[0] for order in orders):
        finding = world.found("same-data-on-all-ranks")
        if finding is not None:
            return broken(finding)
        return not_judged("ranks read the same samples in the same order; each may take a part")
    return _judge_overlap(world, epochs, samples)


def _unknown(world: World) -> str:
    """Return why nothing can be said about the samples; empty if something can."""
    if not all(rank.epochs for rank in world.ranks):
        return "no DataLoader was seen whose batches are trained on"
    epochs = [rank.epochs[0] for rank in world.ranks]
    if any(epoch.indices is None for epoch in epochs):
        return "the loader has no indices of samples, as a stream"
    if len({epoch.key for epoch in epochs}) > 1:
        return "ranks have datasets of different lengths"
    return ""


def _covers(epoch: Loop) -> bool:
    """Return whether a loader alone reads the whole dataset; not known of a few batches."""
    most = max((len(batch or ()) for batch in epoch.batches), default=0)
    is_whole = epoch.num_batches * most >= _WHOLE * epoch.view_length
    return epoch.num_batches >= _LEAST_BATCHES and is_whole


def _most_padding(epochs: Sequence[Loop]) -> int:
    """Return how many samples are repeated at most so that all ranks have as many batches."""
    return sum(max(len(batch or ()) for batch in epoch.batches) for epoch in epochs) + 1


def _judge_overlap(world: World, epochs: Sequence[Loop], samples: set[int]) -> Verdict:
    """Decide about ranks that read some samples in common, in different orders."""
    if not all(_covers(epoch) and epoch.view_length == epoch.dataset_length for epoch in epochs):
        return not_judged("ranks have some samples in common, and each reads a part of the dataset")
    if not _are_same_samples(epochs):
        return not_judged("an index may stand for another sample on each rank")
    training = averaging.main_training(world)
    if training is None or not averaging.are_averaged(training):
        return not_judged("every rank reads the whole dataset; ranks train apart")
    return broken(_unshared(world, epochs, samples))


def _are_same_samples(epochs: Sequence[Loop]) -> bool:
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


def _unshared(world: World, epochs: Sequence[Loop], samples: set[int]) -> Finding:
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


def judge_order(world: World) -> Verdict:
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
    pairs = [(one[: len(other)], other[: len(one)]) for one, other in pairs]
    if not all(is_mixed(one) for one, _ in pairs):
        return not_judged("the order is not shuffled, or too short")
    if any(one == other for one, other in pairs):
        return not_judged("an order is repeated; several trainings may have one order")
    return kept("epochs have different orders")


def _with_place(finding: Finding, world: World) -> Finding:
    """Return the launcher's finding with the line of the loop."""
    places = [epoch.place for epoch in world.ranks[0].epochs if epoch.place]
    values = finding.to_json()
    if places:
        values["where"] = f"{places[0]}, {finding.where}"
    return Finding.from_json(values)


def judge_epoch(world: World, one: World) -> Verdict:
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
    is_disjoint = sum(map(len, orders)) == len(samples)
    if len(samples) < _LEAST_SHARE * len(expected) and is_disjoint:
        return broken(_shorter(world, epochs, samples, expected))
    return not_judged(f"{missing:,} samples of an epoch on 1 rank are not read")


def _shorter(
    world: World, epochs: Sequence[Loop], samples: set[int], expected: set[int]
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
