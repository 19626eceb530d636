"""Which fault explains which other one of the same text, where their tiers do not say it. Pure."""

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
# The first says more about the same fault than those behind it, and goes before them whatever their tiers.
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
        causes: What explains them.
        least: The lowest tier in which it does.
        needs_place: It does so only where the text shows its place.
        names: The faults that follow.
        tier: The tier to which they fall.
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
    # What NCCL does not explain is explained by a connection that was closed.
    Consequence(("peer-rank-died",), Tier.VICTIM, ("cause-unknown", "nccl-system-error"), Tier.AFTERMATH),
    # Transfers and connections break when a rank ends: a plain exception of one rank comes before that.
    Consequence(
        ("user-exception", "script-error-on-one-rank"),
        Tier.DOUBTFUL_EXCEPTION,
        ("infiniband-error", "interface-not-routed"),
        Tier.ABORTED,
        needs_place=True,
    ),
)


def consequences(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower what follows from another candidate to the tier of a consequence."""
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
    """Move each candidate before those that it explains; every name stands there once."""
    current = list(ordered)
    for name, explained in EXPLAINS.items():
        places = {candidate.name: place for place, candidate in enumerate(current)}
        first = min((places[other] for other in explained if other in places), default=len(current))
        if first < places.get(name, -1):
            current.insert(first, current.pop(places[name]))
    return current
