"""Decide which faults training survived, so that they are not the cause of a later end. Pure."""

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
_BAR = re.compile(r"\d+%\|.*?\| *\d+/\d+")  # as tqdm draws it
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
_STOPS = ("stop", "step-cancelled", "exit--15", "stopped")  # keys of stops from outside
_WARNINGS = (Tier.HINTED, Tier.RETRIED, Tier.WARNED)  # training may have continued after these
# The success of the whole run, not of a download.
_OVER = re.compile(r"train|exit|\bjob\b|\brun\b|\bfit\b", re.IGNORECASE)
_EXCEPTIONS = ("user-exception", "library-exception", "script-error-on-one-rank")


@dataclass(frozen=True)
class _Step:
    """A line of progress with its epoch and step, as far as the line shows them."""

    line: Line
    position: tuple[float, int] | None


def lower_survived(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Lower faults after which training continued; drop them if nothing ended the run."""
    steps = new_steps(scanned)
    if not steps and not scanned.of("success"):
        return list(candidates)
    continued = [_continued(candidate, steps, scanned) for candidate in candidates]
    pairs = list(zip(candidates, continued, strict=True))
    # What training survived is dropped, unless something ended the run later: then it stays, far
    # below, since it may have led there.
    end = max((candidate.number for candidate, alive in pairs if not alive), default=-1)
    current = []
    for candidate, alive in pairs:
        if not alive:
            current.append(_doubtful(candidate, steps))
        elif candidate.number < end:
            current.append(replace(candidate, tier=Tier.SURVIVED, survived=True))
    return current


def new_steps(scanned: Scanned) -> list[_Step]:
    """Return the lines of progress, without summaries of experiment trackers and redrawn bars."""
    steps = []
    drawn: dict[str, str | None] = {}  # the last position of a progress bar, by source
    epochs: dict[str, float] = {}
    for match in scanned.of("progress"):
        line = match.line
        if "wandb:" in line.text:
            continue  # printed at the end, also of a run that failed
        epoch, step = _EPOCH.search(line.body), _STEP.search(line.body)
        if epoch:
            epochs[line.source] = float(epoch["epoch"])
        position = (epochs.get(line.source, 0), int(step["step"] or step["of"])) if step else None
        if epoch and not step:
            position = (float(epoch["epoch"]), 0)
        progress_bar = _BAR.search(line.body)
        bar = progress_bar[0] if progress_bar else None
        if bar is None or drawn.get(line.source) != bar:
            steps.append(_Step(line, position))
        drawn[line.source] = bar
    return steps


def _continued(candidate: Candidate, steps: Sequence[_Step], scanned: Scanned) -> bool:
    """Return whether the process with the fault, or the run as a whole, continued training."""
    if candidate.last == _UNKNOWN:
        return False
    if any(_ended_well(match.line, candidate) for match in scanned.of("success")):
        return True
    if candidate.name in _LASTING:
        return False
    own_steps = [step for step in steps if step.line.source == candidate.source]
    if not own_steps:
        return _num_after(steps, candidate.last) >= _OTHERS_STEPS
    several = scanned.counts["distributed"] or scanned.ranks
    may_be_others = several and not candidate.source and not _passed(candidate, scanned)
    needed = _UNLABELLED_STEPS if may_be_others else _OWN_STEPS
    return _num_after(own_steps, candidate.last) >= needed


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
    # Logs of several runs or of restarts stand one below the other in one file.
    if before and positions[0] < before[-1]:
        return 0
    return len(set(positions))


def _doubtful(candidate: Candidate, steps: Sequence[_Step]) -> Candidate:
    """Lower an exception after which a few steps follow, so that another exception ranks first."""
    after = sum(
        step.line.number > candidate.number and step.line.source == candidate.source
        for step in steps
    )
    is_exception = candidate.name in _EXCEPTIONS and candidate.tier is Tier.EXCEPTION
    if not is_exception or after < _OWN_STEPS:
        return candidate
    return replace(candidate, tier=Tier.DOUBTFUL_EXCEPTION)


def drop_ended_after_success(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop faults that an external stop caused after training had finished."""
    ends = [match.line.number for match in scanned.of("success") if _OVER.search(match.line.body)]
    if not ends or any(step.line.number > ends[-1] for step in new_steps(scanned)):
        return list(candidates)
    return [candidate for candidate in candidates if not _is_stop_after(candidate, ends[-1])]


def _is_stop_after(candidate: Candidate, end: int) -> bool:
    """Return whether a stop from outside explains a candidate that follows the end of training."""
    is_stop = candidate.key in _STOPS and candidate.tier < Tier.EXCEPTION
    return is_stop and candidate.number >= end


def drop_overcome(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop warnings after which training continued."""
    progress = new_steps(scanned)
    if not progress:
        return list(candidates)
    last_step = progress[-1].line.number
    return [
        candidate
        for candidate in candidates
        if last_step <= candidate.last or not _may_be_overcome(candidate)
    ]


def _may_be_overcome(candidate: Candidate) -> bool:
    return candidate.tier in _WARNINGS or candidate.name == "peer-rank-died"


def drop_recovered(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop all candidates if the ranks restarted and trained until the end of the text."""
    restarts = scanned.of("restart")
    progress = new_steps(scanned)
    if not restarts or not progress or progress[-1].line.number <= restarts[-1].line.number:
        return list(candidates)
    restart, last_step = restarts[0].line.number, progress[-1].line.number
    if any(_is_after_restart(candidate, restart, last_step) for candidate in candidates):
        return list(candidates)
    return []


def _is_after_restart(candidate: Candidate, restart: int, last_step: int) -> bool:
    """Return whether a candidate is a fault of the restarted ranks."""
    if candidate.number > restart and candidate.tier >= Tier.WORKER_CRASH:
        return True
    last = candidate.number if candidate.last == _UNKNOWN else candidate.last
    return candidate.tier is not Tier.REMARK and last > last_step
