"""Decide which faults training survived: they are not the cause of a later end. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.diagnose.explain.candidates import Candidate
from paceline.diagnose.explain.scan import Scanned
from paceline.signatures.lines import Line
from paceline.signatures.tier import Tier

_STEP = re.compile(
    r"\b(?:global_?)?(?:steps?|iter\w*|batch|(?:num_)?updates)\b\D{0,4}(?P<step>\d+)|\b(?P<of>\d+)"
    r" ?/ ?\d+\b",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\b\D{0,4}(?P<epoch>\d+(?:\.\d+)?)", re.IGNORECASE)
_OWN_STEPS = 2  # of the process itself: it is alive
# Of processes without labels: more steps than others make before they notice a dead peer.
_UNLABELLED_STEPS = 5
_PASSED_REACH = 4  # lines after a fault in which the program reports its fallback
_OTHERS_STEPS = 10  # of another rank: it cannot continue that long without this one
_UNKNOWN = 1 << 62
# Faults that persist in a run that continues, or that come from a scheduler's file placed before
# the run's own.
_LASTING = (
    "gpu-hardware-error",
    "straggler",
    "fp16-nan",
    "non-finite-on-one-rank",
    "replicas-differ",
    "rank-died-oom-killer",
)
_EXCEPTIONS = ("user-exception", "script-error-on-one-rank")


@dataclass(frozen=True)
class _Step:
    """A line of progress with its epoch and step, as far as the line shows them."""

    line: Line
    position: tuple[float, int] | None


def survived(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower faults after which training continued; drop them if nothing ended the run."""
    steps = _steps(scanned)
    if not steps and not scanned.of("success"):
        return list(candidates)
    before = [_continued(each, steps, scanned) for each in candidates]
    end = max(
        (each.number for each, alive in zip(candidates, before, strict=True) if not alive),
        default=-1,
    )
    current = []
    for each, alive in zip(candidates, before, strict=True):
        if not alive:
            current.append(_doubtful(each, steps))
        elif each.number < end:
            current.append(replace(each, tier=Tier.SURVIVED, survived=True))
    return current


def _steps(scanned: Scanned) -> list[_Step]:
    """Return the lines of progress, without the summaries that experiment trackers print."""
    steps = []
    epochs: dict[str, float] = {}
    for match in scanned.of("progress"):
        line = match.line
        if "wandb:" in line.text:
            continue
        epoch, step = _EPOCH.search(line.body), _STEP.search(line.body)
        if epoch:
            epochs[line.source] = float(epoch["epoch"])
        position = (epochs.get(line.source, 0), int(step["step"] or step["of"])) if step else None
        if epoch and not step:
            position = (float(epoch["epoch"]), 0)
        steps.append(_Step(line, position))
    return steps


def _continued(candidate: Candidate, steps: Sequence[_Step], scanned: Scanned) -> bool:
    """Return whether the process with the fault, or the run as a whole, continued training."""
    if candidate.last == _UNKNOWN:
        return False
    if any(_ended_well(match.line, candidate) for match in scanned.of("success")):
        return True
    if candidate.name in _LASTING:
        return False
    own = [step for step in steps if step.line.source == candidate.source]
    several = scanned.counts["distributed"] or scanned.ranks
    needed = (
        _UNLABELLED_STEPS
        if several and not candidate.source and not _passed(candidate, scanned)
        else _OWN_STEPS
    )
    if own:
        return _num_after(own, candidate.last) >= needed
    return _num_after(steps, candidate.last) >= _OTHERS_STEPS


def _passed(candidate: Candidate, scanned: Scanned) -> bool:
    """Return whether the next lines say that the program skips the failed part or tries again."""
    reach = range(candidate.last, candidate.last + _PASSED_REACH)
    return any(match.line.number in reach for match in scanned.of("passed-over"))


def _ended_well(line: Line, candidate: Candidate) -> bool:
    return line.number > candidate.last and line.source in ("", candidate.source)


def _num_after(steps: Sequence[_Step], number: int) -> int:
    """Return the number of different steps after a line; 0 if they start over as in a new log."""
    after = [step for step in steps if step.line.number > number]
    positions = [step.position for step in after if step.position is not None]
    if not positions:
        return len(after)
    before = [
        step.position for step in steps if step.line.number < number and step.position is not None
    ]
    if before and positions[0] < before[-1]:
        return 0
    return len(set(positions))


def _doubtful(candidate: Candidate, steps: Sequence[_Step]) -> Candidate:
    """Lower an exception after which a few steps follow, so that another exception ranks first."""
    after = sum(
        step.line.number > candidate.number and step.line.source == candidate.source
        for step in steps
    )
    if (
        candidate.name not in _EXCEPTIONS
        or candidate.tier is not Tier.EXCEPTION
        or after < _OWN_STEPS
    ):
        return candidate
    return replace(candidate, tier=Tier.DOUBTFUL_EXCEPTION)
