"""What training continued after: it is not the cause of a later end. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.diagnose.explain.candidates import Candidate
from paceline.diagnose.explain.scan import Scanned
from paceline.signatures.lines import Line
from paceline.signatures.tier import Tier

_STEP = re.compile(
    r"\b(?:global_?)?(?:steps?|iter\w*|batch|(?:num_)?updates)\b\D{0,4}(?P<step>\d+)|\b(?P<of>\d+) ?/ ?\d+\b",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch\b\D{0,4}(?P<epoch>\d+(?:\.\d+)?)", re.IGNORECASE)
_OWN_STEPS = 2  # of the process itself: it is alive
_UNLABELLED_STEPS = 5  # of processes that nothing tells apart: more than the others take before they notice a dead one
_PASSED_REACH = 4  # lines behind a fault in which the program says what it does instead
_OTHERS_STEPS = 10  # of another rank: it cannot continue that long without this one
_UNKNOWN = 1 << 62
# What stays true of a run that continues, or is in a scheduler's file that was put before that of the run.
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
    """A line of progress, and how far training has come by it: epoch and step, as far as the line has them."""

    line: Line
    position: tuple[float, int] | None


def survived(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Move back what was caught and logged, or only quoted, if training continued; drop it if nothing ended the run."""
    steps = _steps(scanned)
    if not steps and not scanned.of("success"):
        return list(candidates)
    before = [_continued(each, steps, scanned) for each in candidates]
    end = max((each.number for each, alive in zip(candidates, before, strict=True) if not alive), default=-1)
    current = []
    for each, alive in zip(candidates, before, strict=True):
        if not alive:
            current.append(_doubtful(each, steps))
        elif each.number < end:
            current.append(replace(each, tier=Tier.SURVIVED, survived=True))
    return current


def _steps(scanned: Scanned) -> list[_Step]:
    """The lines of progress; summaries that experiment trackers print at the end are none."""
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
    """The process that met it, or the run as a whole, trained on."""
    if candidate.last == _UNKNOWN:
        return False
    if any(_ended_well(match.line, candidate) for match in scanned.of("success")):
        return True
    if candidate.name in _LASTING:
        return False
    own = [step for step in steps if step.line.source == candidate.source]
    several = scanned.counts["distributed"] or scanned.ranks
    needed = _UNLABELLED_STEPS if several and not candidate.source and not _passed(candidate, scanned) else _OWN_STEPS
    if own:
        return _num_after(own, candidate.last) >= needed
    return _num_after(steps, candidate.last) >= _OTHERS_STEPS


def _passed(candidate: Candidate, scanned: Scanned) -> bool:
    """The lines behind it say that the program left out what failed, or tries again."""
    reach = range(candidate.last, candidate.last + _PASSED_REACH)
    return any(match.line.number in reach for match in scanned.of("passed-over"))


def _ended_well(line: Line, candidate: Candidate) -> bool:
    return line.number > candidate.last and line.source in ("", candidate.source)


def _num_after(steps: Sequence[_Step], number: int) -> int:
    """How many different steps follow a line, 0 if they do not continue those before it: another log begins there."""
    after = [step for step in steps if step.line.number > number]
    positions = [step.position for step in after if step.position is not None]
    if not positions:
        return len(after)
    before = [step.position for step in steps if step.line.number < number and step.position is not None]
    if before and positions[0] < before[-1]:
        return 0
    return len(set(positions))


def _doubtful(candidate: Candidate, steps: Sequence[_Step]) -> Candidate:
    """An exception after which a few steps are shown, of this process or of others: another exception goes first."""
    after = sum(step.line.number > candidate.number and step.line.source == candidate.source for step in steps)
    if candidate.name not in _EXCEPTIONS or candidate.tier is not Tier.EXCEPTION or after < _OWN_STEPS:
        return candidate
    return replace(candidate, tier=Tier.DOUBTFUL_EXCEPTION)
