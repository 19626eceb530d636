"""Decide which fault explains another one of the same text, beyond their tiers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.diagnose.explain.candidates import Candidate
from paceline.diagnose.explain.scan import Scanned
from paceline.signatures.tier import Tier

_NEEDS_ENVIRONMENT = (
    "torch-missing",
    "module-not-found",
    "wrong-python-env",
    "library-version-mismatch",
    "script-missing",
    "rank-died-signal",
)
# The first says more about the same fault than the others, and precedes them in any tier.
EXPLAINS = {
    "gloo-loopback": ("master-unreachable",),
    "master-addr-wrong": ("hostname-unresolvable", "master-unreachable"),
    "hostname-unresolvable": ("master-unreachable",),
    "memlock-too-low": ("infiniband-error",),
    "slurm-unavailable": ("slurm-refused",),
    "environment-module-unknown": _NEEDS_ENVIRONMENT,
    "conda-activate-without-hook": _NEEDS_ENVIRONMENT,
}


@dataclass(frozen=True)
class Consequence:
    """Faults that follow from another one.

    Attributes:
        causes: Names of the faults that explain them.
        least: Lowest tier of a cause.
        needs_place: Whether the text must show the place of the cause.
        names: Names of the consequences.
        tier: New tier of the consequences.
    """

    causes: tuple[str, ...]
    least: Tier
    names: tuple[str, ...]
    tier: Tier
    needs_place: bool = False

    def explained_by(self, candidate: Candidate) -> bool:
        """Return whether a candidate explains these faults."""
        if candidate.name not in self.causes or candidate.tier < self.least:
            return False
        return bool(candidate.where) or not self.needs_place


CONSEQUENCES = (
    # A closed connection explains errors that NCCL does not explain.
    Consequence(
        ("peer-rank-died",), Tier.VICTIM, ("cause-unknown", "nccl-system-error"), Tier.AFTERMATH
    ),
    # Transfers and connections break when a rank ends, so a plain exception of one rank precedes
    # them.
    Consequence(
        ("user-exception", "script-error-on-one-rank"),
        Tier.DOUBTFUL_EXCEPTION,
        ("infiniband-error", "interface-not-routed"),
        Tier.ABORTED,
        needs_place=True,
    ),
)


def consequences(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower the consequences of other candidates to the tier of a consequence."""
    current = list(candidates)
    for consequence in CONSEQUENCES:
        if any(consequence.explained_by(candidate) for candidate in current):
            current = [_lowered(candidate, consequence) for candidate in current]
    return current


def _lowered(candidate: Candidate, consequence: Consequence) -> Candidate:
    if candidate.name not in consequence.names:
        return candidate
    return replace(candidate, tier=min(candidate.tier, consequence.tier))


def explaining_first(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Move each candidate before the candidates that it explains; names are unique."""
    current = list(ordered)
    for name, explained in EXPLAINS.items():
        places = {candidate.name: place for place, candidate in enumerate(current)}
        first = min((places[other] for other in explained if other in places), default=len(current))
        if first < places.get(name, -1):
            current.insert(first, current.pop(places[name]))
    return current
