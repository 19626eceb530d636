"""Decide which fault explains another one of the same text, beyond their tiers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.diagnose.explain.candidates import Candidate, changed
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
# Keys of ranks that a signal ended because of a fault.
_CRASHES = ("exit--6", "exit--7", "exit--9", "exit--11")
# What a rank reports if another one stopped or ended.
LOST_PEER = ("peer-rank-died", "collective-timeout")


@dataclass(frozen=True)
class Consequence:
    """Faults that follow from another one."""

    causes: tuple[str, ...]  # names of the faults that explain them
    least: Tier  # lowest tier of a cause
    names: tuple[str, ...]  # names of the consequences
    tier: Tier  # new tier of the consequences
    needs_place: bool = False  # whether the text must show the place of the cause

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
        ("user-exception", "library-exception", "script-error-on-one-rank"),
        Tier.DOUBTFUL_EXCEPTION,
        ("infiniband-error", "interface-not-routed"),
        Tier.ABORTED,
        needs_place=True,
    ),
)


def lower_consequences(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
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


def blame_launcher(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Attribute SIGTERM of some ranks to the launcher if another rank failed first."""
    exits = scanned.of("exit") + scanned.of("table-exit")
    failed = any(int(match.groups["code"]) > 0 for match in exits)
    crashed = any(scanned.counts[key] for key in _CRASHES)
    if not failed and not crashed:
        return list(candidates)
    return changed(
        candidates,
        lambda candidate: replace(candidate, name="peer-rank-died", tier=Tier.RANKS_ENDED),
        key="exit--15",
    )


def name_single_rank(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Rename an exception of one rank if the other ranks only lost their peer."""
    if not any(candidate.name in LOST_PEER for candidate in candidates):
        return list(candidates)
    return changed(
        candidates,
        lambda candidate: replace(candidate, name="script-error-on-one-rank"),
        name="user-exception",
        key="alone",
    )


def lower_after_stop(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower what follows an external stop of the job, and raise what precedes it."""
    stops = [candidate.number for candidate in candidates if candidate.key == "stop"]
    if not stops:
        return list(candidates)
    return [_around_stop(candidate, min(stops)) for candidate in candidates]


def _around_stop(candidate: Candidate, stop: int) -> Candidate:
    """Return a candidate with the tier that follows from the line number of a stop."""
    if candidate.key == "stop":
        return candidate
    # Ranks that get SIGTERM fail in many ways. What was wrong before may be why it was sent.
    if candidate.number >= stop and candidate.tier <= Tier.EXCEPTION:
        return replace(candidate, tier=min(candidate.tier, Tier.VICTIM))
    if candidate.number < stop and Tier.TIMEOUT <= candidate.tier < Tier.EXCEPTION:
        return replace(candidate, tier=Tier.OUTSIDE)
    return candidate


def explaining_first(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Move each candidate before the candidates that it explains; names are unique."""
    current = list(ordered)
    for name, explained in EXPLAINS.items():
        places = {candidate.name: place for place, candidate in enumerate(current)}
        first = min((places[other] for other in explained if other in places), default=len(current))
        if first < places.get(name, -1):
            current.insert(first, current.pop(places[name]))
    return current
