"""Decide whether ranks draw the dropout masks that they must, in training of one model. Pure.

Ranks whose model gets the same input are parts of one model. Where they hold the same activations,
they must drop the same; where they hold different ones, and above all ranks that share out the
data, other masks must be drawn. Masks are drawn as the script does, though nothing is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import Finding
from paceline.measure.verify.recorded_values import Period, Sums
from paceline.measure.verify.records import (
    ComparisonVerdict,
    RecordedWorld,
    broken,
    kept,
    not_judged,
)

_LEAST_VALUES = 16  # of a mask: those of fewer values may be equal by chance


@dataclass(frozen=True)
class _Pair:
    """The masks of one dropout on two ranks."""

    module: str
    ranks: tuple[int, int]
    is_one_model: bool  # whether the model of both has the same input
    is_same_input: bool
    is_same_mask: bool


def judge(world: RecordedWorld) -> ComparisonVerdict:
    """Decide about the masks of the first step with dropout."""
    periods = [rank.get(1, Period()) for rank in world.values]
    if not periods or not all(period.calls for period in periods):
        return not_judged("no forward of a module was seen")
    if len({len(period.masks) for period in periods}) > 1:
        return not_judged("ranks have other numbers of dropouts")
    place = periods[0].place
    pairs = _pairs(periods)
    one_model = [pair for pair in pairs if pair.is_one_model]
    other = next((p for p in one_model if p.is_same_input and not p.is_same_mask), None)
    if other is not None:
        return broken(_other_mask(other, place))
    same = next((p for p in one_model if not p.is_same_input and p.is_same_mask), None)
    if same is not None:
        return broken(_same_mask(same, place))
    apart = [pair for pair in pairs if not pair.is_one_model]
    if apart and all(pair.is_same_mask for pair in apart):
        return broken(_same_mask(apart[0], place))
    number = len(periods[0].masks)
    return kept(f"{number} masks of the first step" if number else "no dropout was seen")


def _pairs(periods: Sequence[Period]) -> list[_Pair]:
    pairs = []
    for a, b in itertools.combinations(range(len(periods)), 2):
        is_one_model = periods[a].inputs == periods[b].inputs
        both = zip(periods[a].masks, periods[b].masks, strict=True)
        for (name, sums, mask), (other_name, other_sums, other_mask) in both:
            if name == other_name and sums[0] == other_sums[0] >= _LEAST_VALUES:
                pairs.append(
                    _Pair(
                        name, (a, b), is_one_model, _is_like(sums, other_sums), mask == other_mask
                    )
                )
    return pairs


def _is_like(sums: Sums, others: Sums) -> bool:
    """Return whether the inputs of two ranks are the same up to rounding."""
    scale = max(sums[2], others[2], 1e-30)
    return all(abs(a - b) <= 1e-5 * scale for a, b in zip(sums[:3], others[:3], strict=True))


def _same_mask(pair: _Pair, place: str) -> Finding:
    a, b = pair.ranks
    role = (
        "they hold different parts of one activation"
        if pair.is_one_model
        else "their models get different samples"
    )
    return Finding(
        "dropout-same-mask",
        f"ranks {a} and {b} drop the same values in {pair.module}",
        where=place,
        evidence=(f"first: {pair.module}", f"step 1: the masks are equal, and {role}"),
        why="masks repeat over ranks, so dropout is less random than it is on one process",
        fix=(
            "seed what is dropped apart by the rank: torch.manual_seed(seed + rank) after the"
            " model is built, with tensor parallelism by the rank in its group"
        ),
        # Of data ranks many scripts seed all alike, and train well.
        severity="warning" if pair.is_one_model else "hint",
    )


def _other_mask(pair: _Pair, place: str) -> Finding:
    a, b = pair.ranks
    return Finding(
        "dropout-other-mask",
        f"ranks {a} and {b} drop different values of the same activation in {pair.module}",
        where=place,
        evidence=(
            f"first: {pair.module}",
            "step 1: both hold the same input of this dropout, and parts of one model",
        ),
        why="from here on the ranks compute parts of different forwards, and add them up",
        fix="draw the masks of activations that ranks hold alike with the same seed on these ranks",
        severity="warning",
    )
