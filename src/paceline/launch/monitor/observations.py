"""Find silent training errors from the counters of all ranks. Pure.

They are: the same data on all ranks, the same order in each epoch, padding, a split that differs,
random evaluations, NaN, stragglers.
(``machine.agreement`` has replicas that differ.) Facts in, a Finding or None out. A healthy run
must get no warning, so each function returns a finding only where the facts have no other
explanation, and None where they are incomplete.
"""

from __future__ import annotations

import functools
import itertools
import operator
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.counters import Split
from paceline.errors import Finding
from paceline.text.wording import has_or_have, named

# A host is a straggler if it is slower by this factor, in this many consecutive windows of time.
SLOWER = 1.2
WINDOWS = 3
_LEAST_S, _LEAST_SHARE = 0.001, 0.05  # of a step; less is not worth a warning


@dataclass(frozen=True)
class Pace:
    """Mean step times of a node's ranks in a window of time."""

    host: str  # the node's host
    node: int  # the node's rank
    # seconds per step of the ranks' own work: without backward, in which they wait for others
    own_s: float
    data_s: float  # seconds of ``own_s`` in which they wait for data
    step_s: float  # seconds per step

    @property
    def name(self) -> str:
        """The host and the node's rank, since several nodes may be on one host."""
        return f"{self.host} (node {self.node})"


def same_data(
    # hashes of each rank's first indices and samples, 0 for a rank without one; ranks of a node
    # that share a hash may have one entry
    hashes: Sequence[int],
    # hashes of each rank's losses, local gradients and parameters in a few steps, likewise
    works: Sequence[int],
    *,
    world_size: int,  # number of ranks
    indices: int,  # how many indices are in a hash
) -> Finding | None:
    """Return a finding if all ranks train on the same samples and compute the same from them.

    Reading the same samples alone is not an error: ranks may take slices of them, split a model, or
    augment them.
    """
    if world_size < 2 or not _all_alike(hashes) or not _all_alike(works):
        return None
    what = f"the first {indices} samples" if indices > 1 else "the first sample"
    return Finding(
        "same-data-on-all-ranks",
        f"all {world_size} ranks train on the same samples, in the same order",
        where=f"ranks 0-{world_size - 1}",
        evidence=(
            f"indices and content of {what} of the training loader are the same on all ranks",
            "so are losses, gradients before averaging, and parameters, in several steps",
        ),
        why=(
            "every rank computes the same gradient: the run is no faster, and no better, than one"
            " rank"
        ),
        fix=(
            "DataLoader(..., sampler=DistributedSampler(dataset)), or session.loader(dataset,"
            " batch_size=...)"
        ),
        severity="warning",
    )


def _all_alike(hashes: Sequence[int]) -> bool:
    return len(set(hashes)) == 1 and hashes[0] != 0


def same_order(
    # for each rank that saw an order twice: the number of the loop that repeated the order of the
    # previous one, and how many indices were compared
    repeats: Mapping[int, tuple[int, int]],
) -> Finding | None:
    """Return a finding if the order of the samples is the same in two epochs."""
    if not repeats:
        return None
    loop, indices = min(repeats.values())
    return Finding(
        "same-order-each-epoch",
        "a shuffling loader gives its samples in the same order in two epochs in a row",
        where=named(repeats),
        evidence=(
            (
                f"the first {indices} indices of training loops {loop - 1} and {loop} are the same,"
                " and not sorted"
            ),
        ),
        why="a shuffled loader is meant to change the order, and the batches with it",
        fix=(
            "sampler.set_epoch(epoch) before each epoch; a generator: seed it once, not in each"
            " epoch"
        ),
        severity="warning",
    )


def padded(
    dataset_length: int,  # samples of the dataset, 0 if no such evaluation was seen
    padded_length: int,  # samples of all ranks together
    *,
    world_size: int,  # ranks
) -> Finding | None:
    """Return a finding if an evaluation scores some samples twice."""
    if not 0 < dataset_length < padded_length:
        return None
    repeated = padded_length - dataset_length
    samples = "1 sample" if repeated == 1 else f"{repeated} samples"
    return Finding(
        "evaluation-padded",
        f"an evaluation of {dataset_length} samples scores {padded_length}: its DistributedSampler"
        f" repeats {samples}",
        where=f"ranks 0-{world_size - 1}",
        evidence=(
            (
                f"{padded_length} samples were read on {world_size} ranks, without a step; then"
                " figures were reduced"
            ),
        ),
        why="the repeated samples count twice, and the score depends on the number of ranks",
        fix=(
            "DataLoader(Subset(dataset, range(rank, len(dataset), world_size))), and sums divided"
            " by counts; or session.loader(dataset, batch_size=...)"
        ),
        severity="warning",
    )


def split_apart(
    splits: Sequence[Split],  # of ranks that train one model; those of several ranks may come once
    *,
    world_size: int,
) -> Finding | None:
    """Return a finding if ranks split one dataset differently; disjoint shares are on purpose."""
    trained = {split.trained for split in splits}
    do_overlap = all(one & other for one, other in itertools.combinations(trained, 2))
    if len({split.identity for split in splits}) > 1 or len(trained) < 2 or not do_overlap:
        return None
    some = functools.reduce(operator.or_, trained)
    known = some & functools.reduce(operator.or_, (split.held_out for split in splits))
    if not known and not all(split.is_shared for split in splits):
        return None
    differing = some ^ functools.reduce(operator.and_, trained)
    evaluated = f"; {known.bit_count()} of them are evaluated on by another" if known else ""
    return Finding(
        "data-not-shardable",
        "ranks split one dataset differently: one trains on samples that another holds out",
        where=f"ranks 0-{world_size - 1}",
        evidence=(
            f"of {some.bit_count()} samples that were compared, {differing.bit_count()} are in the"
            f" training set of some ranks only{evaluated}",
        ),
        why="the score is of samples that the model knows, and some are trained on twice or never",
        fix="random_split(dataset, lengths, generator=torch.Generator().manual_seed(0))",
        severity="warning",
    )


EVALUATION_DRAWS = Finding(
    "loop-draws-numbers",
    "samples of an evaluation draw random numbers: each evaluation has another score",
    evidence=("a global generator of torch, NumPy or Python was drawn from as they were read",),
    why="random flips and crops of training reach the held-out samples where both share them",
    fix="Subset(Data(transform=without_random), split.indices) for the evaluation",
    severity="hint",
)


def not_a_number(
    names: Mapping[int, str],  # for each such rank, the first parameter that contains a NaN
) -> Finding | None:
    """Return a finding if ranks have succeeded although their parameters contain NaN."""
    if not names:
        return None
    rank = min(names)
    return Finding(
        "parameters-not-finite",
        f"{named(names)} ended with NaN in the parameters, first in {names[rank]}",
        where=named(names),
        evidence=(f"rank {rank}: {names[rank]} has a NaN after its last step",),
        why=(
            "everything that such a model computes is NaN: what was saved at the end is worth"
            " nothing"
        ),
        fix=(
            "paceline run --check-finite ...: it stops at the first loss or gradient that is not"
            " finite"
        ),
        severity="warning",
    )


def uneven(
    # ``rank, loops, loop_batches, first_loop_batches, open_batches, loop_length`` of every rank
    counters: Sequence[Mapping[str, Any]],
) -> Finding | None:
    """Return a finding if ranks have different numbers of batches when they hang or fail."""
    furthest = max((entry["loops"] for entry in counters), default=0)
    ended = {
        entry["rank"]: entry["loop_batches"] for entry in counters if entry["loops"] == furthest
    }
    behind = {
        entry["rank"]: entry["open_batches"] for entry in counters if entry["loops"] == furthest - 1
    }
    are_far_apart = len(ended) + len(behind) < len(counters)  # for another reason
    if not furthest or are_far_apart or min(ended.values()) < 1:  # below 1: an uncertain count
        return None
    if not behind:
        return _uneven_ended(ended, furthest)
    lengths = {entry["rank"]: entry["loop_length"] for entry in counters if entry["rank"] in behind}
    return _uneven_open(ended, behind, lengths, furthest) or _uneven_first_loop(counters)


def _uneven_open(
    ended: Mapping[int, int],
    behind: Mapping[int, int],  # batches so far of the ranks that are still in it
    lengths: Mapping[int, int],  # length of the loader of the ranks that are still in it
    loop: int,  # number of the loop
) -> Finding | None:
    """Return a finding if ranks are still in a loop that others have ended with fewer batches."""
    most = max(ended.values())
    least = min(behind.values())
    if least > most:
        return _uneven(ended, behind, "had taken", loop)
    if least == most < min(lengths.values()):
        # the ranks behind hang before they take one more batch
        return _uneven(ended, lengths, has_or_have(behind), loop)
    return None


def _uneven_first_loop(counters: Sequence[Mapping[str, Any]]) -> Finding | None:
    batches = {entry["rank"]: entry["first_loop_batches"] for entry in counters if entry["loops"]}
    all_counted = len(batches) == len(counters) and min(batches.values()) > 0
    return _uneven_ended(batches, 1) if all_counted else None


def _uneven_ended(batches: Mapping[int, int], loop: int) -> Finding | None:
    """Return a finding if ranks ended one loop after different numbers of batches."""
    if len(set(batches.values())) == 1:
        return None
    least = min(batches.values())
    fewer = {rank: count for rank, count in batches.items() if count == least}
    more = {rank: count for rank, count in batches.items() if count > least}
    return _uneven(fewer, more, "ended after", loop)


def _uneven(fewer: Mapping[int, int], more: Mapping[int, int], verb: str, loop: int) -> Finding:
    count = Counter(fewer.values()).most_common(1)[0][0]
    theirs = sorted(set(more.values()))
    counts = f"{theirs[0]}" if len(theirs) == 1 else f"{theirs[0]} to {theirs[-1]}"
    loader = f"{named(fewer)}'s loader" if len(fewer) == 1 else f"the loaders of {named(fewer)}"
    return Finding(
        "uneven-inputs",
        f"{loader} ended after {count} batches, {named(more)} {verb} {counts}",
        where=f"training loop {loop} of {named(fewer)}",
        why="a rank without a batch does not come to the collective that the others wait in",
        fix=(
            "give all ranks as many: DistributedSampler or drop_last=True, session.loader(...), "
            "or torch.distributed.algorithms.join.Join"
        ),
    )


def slowest(paces: Sequence[Pace]) -> Pace | None:
    """Return the pace of the node that the others wait for; None if no node is much slower."""
    if len(paces) < 2:
        return None
    slow = max(paces, key=lambda pace: pace.own_s)
    others = _others(paces, slow).own_s
    lost = slow.own_s - others
    enough = lost >= _LEAST_S and lost >= _LEAST_SHARE * slow.step_s
    return slow if enough and slow.own_s > SLOWER * others else None


def straggler(
    # the paces of all nodes in each window of time, oldest first
    windows: Sequence[Sequence[Pace]],
) -> Finding | None:
    """Return a finding if one host delays the others."""
    last = windows[-WINDOWS:]
    slow_paces = [slowest(paces) for paces in last]
    slow_nodes = {pace.node if pace else None for pace in slow_paces}
    if len(last) < WINDOWS or len(slow_nodes) > 1 or None in slow_nodes:
        return None
    slow = slow_paces[-1]
    assert slow is not None
    others = [_others(paces, pace) for paces, pace in zip(last, slow_paces, strict=True) if pace]
    own, data, step = (_mean_ms(slow_paces, name) for name in ("own_s", "data_s", "step_s"))
    their_own, their_data = _mean_ms(others, "own_s"), _mean_ms(others, "data_s")
    waits_for_data = data - their_data > (own - their_own) / 2
    return Finding(
        "straggler",
        f"{slow.name} holds the others up: {own:.1f} ms of its own work a step, theirs"
        f" {their_own:.1f} ms" + (f" ({own / their_own:.1f}x)" if their_own else ""),
        where=slow.name,
        evidence=(
            f"of it {data:.1f} ms waiting for data, theirs {their_data:.1f} ms",
            (
                f"the others wait {min(1.0, (own - their_own) / step):.0%} of each step, which"
                f" takes {step:.1f} ms"
            ),
            f"in {WINDOWS} windows of time in a row",
        ),
        fix=(
            "look at its storage, and at the CPUs that its loader workers have"
            if waits_for_data
            else (
                "look there for other processes (top), and for clocks held down (nvidia-smi -q -d"
                " PERFORMANCE)"
            )
        ),
        severity="warning",
    )


def _others(paces: Sequence[Pace], one: Pace) -> Pace:
    rest = [pace for pace in paces if pace.node != one.node]
    own, data = (
        statistics.median(getattr(pace, name) for pace in rest) for name in ("own_s", "data_s")
    )
    return Pace("", -1, own, data, one.step_s)


def _mean_ms(paces: Sequence[Pace | None], name: str) -> float:
    return statistics.fmean(getattr(pace, name) for pace in paces) * 1e3
