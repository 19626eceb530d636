"""Decide about all properties of a script on each number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.errors import Finding
from paceline.measure.verify import rates, replicas, samples, updates
from paceline.measure.verify.records import (
    PROVEN,
    ComparisonVerdict,
    RecordedWorld,
    broken,
    not_judged,
)
from paceline.rundir import proofs
from paceline.rundir.proofs import Proof


@dataclass(frozen=True)
class Property:
    """A property of a script."""

    name: str  # its name in JSON
    title: str  # the same in words, for the table
    # what is known, by number of ranks; numbers that it does not apply to are left out
    verdicts: Mapping[int, ComparisonVerdict]


Judge = Callable[[RecordedWorld, RecordedWorld | None], ComparisonVerdict]


def judge(worlds: Mapping[int, RecordedWorld], proof: Proof) -> list[Property]:
    """Return the properties of a script, from what its ranks have recorded."""
    one = worlds.get(1)
    proven = Property("rows", "loss is a mean over rows", {min(worlds): _of_proof(proof)})
    return [proven] + [
        Property(name, title, _verdicts(worlds, one, function, applies_to_one))
        for name, title, function, applies_to_one in _PROPERTIES
    ]


def _of_proof(proof: Proof) -> ComparisonVerdict:
    if proof.finding is not None:
        return broken(Finding.from_json(proof.finding))
    if proof.state == proofs.PROVEN:
        return ComparisonVerdict(
            PROVEN, f"gradients of a batch are the mean of its parts ({proof.error:.0e})"
        )
    return not_judged(proof.reason)


def _verdicts(
    worlds: Mapping[int, RecordedWorld],
    one: RecordedWorld | None,
    function: Judge,
    applies_to_one: bool,
) -> dict[int, ComparisonVerdict]:
    sizes = [size for size in sorted(worlds) if size > 1 or applies_to_one]
    verdicts = {}
    for size in sizes:
        world = worlds[size]
        ranks = [*world.ranks, *(one.ranks if one is not None else ())]
        fault = next((rank.fault for rank in ranks if rank.fault), "")
        incomplete = not_judged(f"records are incomplete: {fault}")
        verdicts[size] = incomplete if fault else function(world, one)
    return verdicts


def _beside_one(function: Callable[[RecordedWorld, RecordedWorld], ComparisonVerdict]) -> Judge:
    """Return a judge that needs the records of one rank."""

    def compared(world: RecordedWorld, one: RecordedWorld | None) -> ComparisonVerdict:
        if one is None:
            return not_judged("needs the run on 1 rank: --world 1,...")
        return function(world, one)

    return compared


def _by_itself(function: Callable[[RecordedWorld], ComparisonVerdict]) -> Judge:
    def judged(world: RecordedWorld, one: RecordedWorld | None) -> ComparisonVerdict:
        return function(world)

    return judged


_PROPERTIES: Sequence[tuple[str, str, Judge, bool]] = (
    ("shares", "each sample once an epoch", _by_itself(samples.judge_shares), True),
    ("order", "a new order each epoch", _by_itself(samples.judge_order), True),
    ("epoch", "an epoch as on 1 rank", _beside_one(samples.judge_epoch), False),
    ("rate", "learning rate", _beside_one(rates.judge), False),
    ("replicas", "parameters equal on ranks", _by_itself(replicas.judge), False),
    ("loss", "loss as on 1 rank", _beside_one(updates.judge_loss), False),
    ("updates", "updates as on 1 rank", _beside_one(updates.judge_updates), False),
    ("evaluation", "each sample evaluated once", samples.judge_count, False),
    ("figure", "printed figure of all ranks", samples.judge_figure, False),
)


def findings_of(properties: Sequence[Property]) -> list[Finding]:
    """Return each finding once, of the smallest number of ranks that has it."""
    first: dict[str, Finding] = {}
    sizes: dict[str, list[int]] = {}
    for one_property in properties:
        for size, verdict in one_property.verdicts.items():
            if verdict.finding is not None:
                first.setdefault(verdict.finding.name, verdict.finding)
                sizes.setdefault(verdict.finding.name, []).append(size)
    return [_also(finding, sizes[name][1:]) for name, finding in first.items()]


def _also(finding: Finding, others: Sequence[int]) -> Finding:
    """Return a finding that names the other numbers of ranks which have it too."""
    if not others:
        return finding
    numbers = " and ".join(map(str, others))
    return replace(finding, evidence=(*finding.evidence, f"also on {numbers} ranks"))
