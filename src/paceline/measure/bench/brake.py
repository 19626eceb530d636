"""Decide what holds the largest number of ranks back, in one sentence. Pure.

The parts of its step are compared with those of the smallest number of ranks: the part that has
grown most over what ideal scaling allows is the brake. It is named only if the interval of the
efficiency is below ``IDEAL``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from paceline.codes import CODES
from paceline.launch.monitor import bottleneck
from paceline.launch.monitor.step_parts import STAGE_WORDS
from paceline.measure.bench_file import WorldFigures
from paceline.text.wording import milliseconds

IDEAL = 0.97  # an efficiency whose interval reaches this is not called held back
# Of a step; waiting that long for data, or for ranks, is a brake also where scaling is ideal.
WAITING_SHARE = 0.25
SMALL_BYTES = 4 << 20  # gradients of this size take a time that hardly depends on their size
NONE, DATA, COMPUTE, BATCH, COMMUNICATION, SLOW_RANK, UNEVEN, OTHER, UNKNOWN = (
    "none",
    "data",
    "compute",
    "small-batch",
    "communication",
    "slow-rank",
    "uneven-ranks",
    "other-code",
    "unknown",
)
# What a brake is as a finding, where steps wait longer than they compute.
_FINDINGS = {
    DATA: bottleneck.DATA,
    COMMUNICATION: bottleneck.COMMUNICATION,
    BATCH: bottleneck.COMMUNICATION,
}


@dataclass(frozen=True)
class Brake:
    """What holds scaling back."""

    name: str  # one of the names above
    sentence: str  # the finding, with its figures
    advice: str = ""  # what to do about it; empty if there is nothing to do
    # ``"data-bound"`` or ``"communication-bound"`` if steps wait for that longer than they compute,
    # on the largest number of ranks; else empty
    finding: str = ""

    @property
    def code(self) -> str:
        """The code of the finding; empty without one."""
        return CODES.get(self.finding, "")

    def to_json(self) -> dict[str, str]:
        """Return the brake as plain data."""
        return {**asdict(self), "code": self.code}


@dataclass(frozen=True)
class BrakeCase:
    """What the brake is decided from."""

    base: WorldFigures  # the smallest number of ranks
    largest: WorldFigures  # the largest
    is_weak: bool  # whether the batch of a rank is the same on both
    script: str  # the script, for the advice
    gradient_bytes: int | None = None  # bytes that are reduced in a step; None if unknown

    @property
    def ideal(self) -> dict[str, float]:
        """The parts of a step of the largest number of ranks if scaling were ideal, in seconds."""
        factor = 1.0 if self.is_weak else self.base.num_ranks / self.largest.num_ranks
        return {part: seconds * factor for part, seconds in self.base.parts.items()}

    @property
    def growth(self) -> dict[str, float]:
        """By how many seconds each part is longer than in ideal scaling."""
        ideal = self.ideal
        parts = self.largest.parts
        return {part: seconds - ideal.get(part, 0.0) for part, seconds in parts.items()}


def judge(
    figures: Sequence[WorldFigures],  # the smallest number of ranks first
    *,
    is_weak: bool,  # the batch of a rank is the same on all of them
    script: str,  # for the advice
    gradient_bytes: int | None,  # reduced in a step; None if unknown
) -> Brake:
    """Return what holds the largest number of ranks back."""
    case = BrakeCase(figures[0], figures[-1], is_weak, script, gradient_bytes)
    brake = _brake(case, is_alone=len(figures) == 1)
    name = _FINDINGS.get(brake.name, "")
    is_finding = name and bottleneck.longest_wait(case.largest.parts) == name
    return replace(brake, finding=name) if is_finding else brake


def _brake(case: BrakeCase, *, is_alone: bool) -> Brake:
    if is_alone or case.largest.efficiency.high >= IDEAL:
        return _not_held_back(case, is_alone=is_alone)
    growth = case.growth
    part = max(growth, key=lambda name: growth[name])
    data_s = case.largest.parts.get("data", 0.0)
    waits_for_data = _share(case.largest.parts, "data") >= WAITING_SHARE
    if waits_for_data and part != "data" and data_s > growth[part]:
        return _not_held_back(case, is_alone=False)  # more than all that scaling costs
    if _is_too_little_work(case):
        return _small_batch(case)
    if growth[part] <= 0:
        return Brake(UNKNOWN, f"{_efficiency(case)}; no part of the step explains it")
    return _SENTENCES[part](case)


def _not_held_back(case: BrakeCase, *, is_alone: bool) -> Brake:
    share = _share(case.largest.parts, "data")
    if share >= WAITING_SHARE:
        sentence = f"{_ranks(case.largest)} wait for data {share:.0%} of the time"
        if case.largest.num_ranks == 1:
            sentence = f"waiting for data takes {share:.0%} of the time"
        return Brake(DATA, sentence, f"paceline tune {case.script}")
    # The waiting is measured in each step, so it is known also where the efficiency is not.
    if _share(case.largest.parts, "waiting") >= WAITING_SHARE:
        return _waiting(case)
    if is_alone:
        return Brake(NONE, "one number of ranks was measured, so nothing is known about scaling")
    return Brake(NONE, f"nothing beyond the noise of these steps: {_efficiency(case)}")


def _is_too_little_work(case: BrakeCase) -> bool:
    """Return whether ranks spend longer on each other than on computing, for few bytes."""
    parts, growth = case.largest.parts, case.growth
    together = {"communication"}
    if case.largest.slow_rank is None:
        together.add("waiting")  # where a rank is known to be slow, its work is the cause
    together_s = sum(growth.get(part, 0.0) for part in together)
    is_largest = together_s > max(
        0.0, *(grown_s for part, grown_s in growth.items() if part not in together)
    )
    has_few_bytes = case.gradient_bytes is not None and case.gradient_bytes < SMALL_BYTES
    return is_largest and has_few_bytes and together_s > parts["compute"]


def _small_batch(case: BrakeCase) -> Brake:
    parts = case.largest.parts
    together_s = parts.get("communication", 0.0) + parts.get("waiting", 0.0)
    return Brake(
        BATCH,
        f"too little work in a step: a rank computes for {milliseconds(parts['compute'])}, and"
        f" exchanging gradients takes {milliseconds(together_s)}",
        "a larger batch for each rank, or gradient accumulation",
    )


def _data(case: BrakeCase) -> Brake:
    is_small = _share(case.largest.parts, "data") < bottleneck.SMALL_DATA_SHARE
    return Brake(
        DATA,
        f"waiting for data, {_grown(case, 'data')}: ranks share CPUs and disks",
        "" if is_small else f"paceline tune {case.script}",
    )


def _compute(case: BrakeCase) -> Brake:
    if case.is_weak:
        return Brake(
            COMPUTE,
            f"computing, {_grown(case, 'compute')} for the same batch: ranks share CPUs, memory"
            " bandwidth or power",
            "fewer ranks on a node, or more CPUs for each",
        )
    computing = milliseconds(case.largest.parts["compute"])
    ideal = milliseconds(case.ideal["compute"])
    return Brake(
        BATCH,
        f"too small a batch: computing takes {computing} on {_ranks(case.largest)}, where a share"
        f" of {_ranks(case.base)} would be {ideal}",
        "a larger global batch, or fewer ranks",
    )


def _communication(case: BrakeCase) -> Brake:
    size = ""
    if case.gradient_bytes is not None:
        size = f" of {case.gradient_bytes / 1e6:.3g} MB"
    return Brake(
        COMMUNICATION,
        f"exchanging gradients{size}: {_grown(case, 'communication')} that no computing hides",
        f"paceline bench --settings all {case.script}",
    )


def _waiting(case: BrakeCase) -> Brake:
    slow = case.largest.slow_rank
    if slow is None:
        waiting = milliseconds(case.largest.parts["waiting"])
        return Brake(
            UNEVEN,
            f"uneven ranks: the last one is {waiting} later than the typical one, and not always"
            " the same",
            "batches of similar length, and no other work on the CPUs of the ranks",
        )
    return Brake(
        SLOW_RANK,
        f"waiting for rank {slow['rank']} ({slow['host']}), which takes"
        f" {milliseconds(slow['seconds'])} longer a step: {STAGE_WORDS[slow['stage']]}",
        f"paceline doctor, on {slow['host']}",
    )


def _other(case: BrakeCase) -> Brake:
    return Brake(
        OTHER,
        f"the script's own code between steps, {_grown(case, 'other code')}",
        "log, evaluate and save less often, or on one rank",
    )


_SENTENCES = {
    "data": _data,
    "compute": _compute,
    "communication": _communication,
    "waiting": _waiting,
    "other code": _other,
}


def _grown(case: BrakeCase, part: str) -> str:
    seconds, before_s = case.largest.parts[part], case.base.parts.get(part, 0.0)
    return (
        f"{milliseconds(seconds)} a step on {_ranks(case.largest)} and {milliseconds(before_s)} on"
        f" {_ranks(case.base)}"
    )


def _efficiency(case: BrakeCase) -> str:
    efficiency = case.largest.efficiency
    return (
        f"the efficiency of {_ranks(case.largest)} is {efficiency.value:.0%}"
        f" ({efficiency.low:.0%} to {efficiency.high:.0%})"
    )


def _share(parts: Mapping[str, float], part: str) -> float:
    total = sum(parts.values())
    return parts.get(part, 0.0) / total if total else 0.0


def _ranks(figures: WorldFigures) -> str:
    return "1 rank" if figures.num_ranks == 1 else f"{figures.num_ranks} ranks"
