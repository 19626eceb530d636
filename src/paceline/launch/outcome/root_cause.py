"""Decide the likely root cause from the rank exits: who failed first, who is a victim, and why.

Pure: records in, a verdict out. An inferred cause is called likely and is shown with its evidence.
``weight`` decides how near an exit is to being the cause, ``explanation`` writes the finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from paceline.errors import EXIT_UNFINISHED, Finding
from paceline.launch.channel.silence import Loss
from paceline.launch.in_rank.meeting import LEAVE_THEM
from paceline.launch.monitor import observations, waiting
from paceline.launch.monitor.hang import LOOK_AT_LINE, MORE_TIME, hangs
from paceline.launch.monitor.hang import judge as judge_hang
from paceline.launch.monitor.position import Position
from paceline.launch.outcome import explanation
from paceline.launch.outcome.rank_exit import RankExit
from paceline.launch.outcome.weight import (
    CAUSE,
    STOP_EXCEPTIONS,
    SUSPECT,
    VICTIM,
    error_texts,
    texts_about,
    weigh,
    weigh_texts,
)
from paceline.signatures.rank_errors import timeout_s
from paceline.text.wording import named, shorten

# What ranks look like whose data does not arrive.
_NO_TRANSFER = ("collective-timeout", "peer-rank-died", "rendezvous-timeout", "master-unreachable")


@dataclass(frozen=True)
class Verdict:
    """The decision about a run that failed."""

    finding: Finding  # the likely cause
    causes: tuple[int, ...] = ()  # ranks that failed in the same way as the first
    victims: tuple[int, ...] = ()  # ranks whose failure follows from the cause
    # the first rank exit of the causes; None if a node was lost or nothing is known
    end: RankExit | None = None
    lost: tuple[str, ...] = ()  # lost nodes, in words
    label: str = ""  # how the block begins if the cause is where ranks were; else empty
    others: tuple[str, ...] = ()  # a line for each rank that failed independently in another way
    threads: tuple[str, ...] = ()  # a line for each exception that ended a thread of a rank


def judge(
    ends: Sequence[RankExit],  # the exits of all ranks, of all nodes that sent an account
    *,
    lost: Iterable[str] = (),  # lost hosts, or lost node ranks in words
    losses: Mapping[str, Loss] = MappingProxyType({}),  # why they are lost, by the same words
    hang: Finding | None = None,  # why the ranks hung, if they were stopped for a hang
    # the cause that a notice named for a wait that lasted until the end
    noticed: Finding | None = None,
    counters: Sequence[Mapping[str, Any]] = (),  # the counters of every rank, as plain data
) -> Verdict:
    """Return the likely root cause."""
    lost = tuple(lost)
    swallowed = [end for end in ends if end.swallowed and weigh(end) == CAUSE]
    if hang is not None and not swallowed:
        return Verdict(hang, label="hang: ")
    bad = [end for end in ends if end.failed or end.unfinished or end in swallowed]
    # What an exit says counts before its time: a victim may be noticed before the rank that failed.
    ranked = sorted(bad, key=lambda end: (weigh(end), end.first_ns, end.rank))
    failed_ranks = _ranks(end for end in ranked if end.failed)
    # A rank that failed by itself explains more than a node that nobody heard of again.
    if lost and (not ranked or weigh(ranked[0]) != CAUSE):
        loss = explanation.explain_loss(lost, losses)
        return Verdict(loss, victims=failed_ranks, lost=lost)
    if not ranked:
        return Verdict(Finding("launcher-fault", "the run failed, but no rank did"))
    first = ranked[0]
    elsewhere = _failed_collective(ends, first, noticed, counters)
    if elsewhere is not None:
        has_waited = texts_about(first, "collective-timeout")
        return Verdict(elsewhere, end=first, label="hang: " if has_waited else "likely cause: ")
    if weigh(first) == VICTIM:
        return Verdict(explanation.explain_victims(first), victims=failed_ranks, end=first)
    return _blame(ranked, ends, lost=lost)


def _ranks(ends: Iterable[RankExit]) -> tuple[int, ...]:
    return tuple(sorted(end.rank for end in ends))


def _blame(
    ranked: Sequence[RankExit], ends: Sequence[RankExit], *, lost: tuple[str, ...]
) -> Verdict:
    """Return the verdict that the first exit, and those alike, caused the failure."""
    first = ranked[0]
    causes = _ranks(end for end in ranked if _same_way(end, first))
    apart = [end for end in ranked if weigh(end) == CAUSE and end.rank not in causes]
    independent = {*causes, *_ranks(apart)}
    others = [_failed_too(end) for end in apart]
    resumable = _ranks(end for end in ranked if end.unfinished)
    if resumable and not first.unfinished:
        others.insert(0, f"{named(resumable)} had stopped to be resumed (status {EXIT_UNFINISHED})")
    finding = explanation.explain(first, causes=causes, num_ranks=len(ends))
    if len(causes) == len(ends) > 1 and finding.where.startswith("rank "):
        everyone = "both ranks" if len(ends) == 2 else "all ranks"
        finding = replace(finding, where=f"{everyone}, the first was {finding.where}")
    if finding.name == "collective-mismatch":
        calls = _calls_of(end for end in ends if end.rank not in causes)
        evidence = (*finding.evidence[:1], *calls[:3], *finding.evidence[1:])
        finding = replace(finding, evidence=evidence)
    return Verdict(
        finding,
        causes=causes,
        victims=_ranks(end for end in ranked if end.failed and end.rank not in independent),
        end=first,
        lost=lost,
        others=tuple(others),
    )


def _calls_of(ends: Iterable[RankExit]) -> list[str]:
    """Return a line for each rank whose last collective is known."""
    positions = [end.position for end in ends if end.position is not None]
    return [f"rank {one.rank}: {one.called}, {one.place}" for one in positions if one.called]


def _failed_collective(
    ends: Sequence[RankExit],
    first: RankExit,
    noticed: Finding | None,
    counters: Sequence[Mapping[str, Any]],
) -> Finding | None:
    """Return why ranks lost each other in a collective, if the likeliest cause is such a loss.

    None if neither a notice nor the positions of the ranks explain it.
    """
    if weigh(first) not in (SUSPECT, VICTIM):
        return None
    timeouts = texts_about(first, "collective-timeout")
    if timeouts and noticed is not None:
        return _end_of_noticed_wait(noticed, first, timeouts[0])
    positions = [_last_position(end) for end in ends if end.position is not None]
    finding = judge_hang(
        positions,
        uneven=observations.uneven(counters),
        broken=not timeouts,
        ended_after_s=timeout_s(timeouts[0]) if timeouts else 0.0,
    )
    return finding and _with_end_of_wait(finding, first, timeouts)


def _last_position(end: RankExit) -> Position:
    """Return where a rank was at its end; a rank whose wait has timed out was still waiting."""
    position = end.position or Position(end.rank)
    if "nccl" in str(error_texts(end)).lower():
        position = replace(position, backend="nccl")
    if position.waits or not texts_about(end, "collective-timeout"):
        return position
    line = next((frame.code for frame in reversed(position.frames) if frame.user), "")
    return replace(position, flying=True, call=line or "a collective")


def _end_of_noticed_wait(noticed: Finding, first: RankExit, timeout: str) -> Finding:
    """Return the cause that a notice named, as the reason why torch ended the wait of a rank."""
    fix = noticed.fix
    if noticed.name in ("rank-stuck-in-code", "rank-stuck-in-data"):
        fix = MORE_TIME.format("timeout=...")
    return replace(_with_end_of_wait(noticed, first, [timeout]), fix=fix)


def _with_end_of_wait(finding: Finding, first: RankExit, timeouts: Sequence[str]) -> Finding:
    ends = [
        f"torch ended the wait of rank {first.rank}: {shorten(text.strip(), 160)}"
        for text in timeouts[:1]
    ]
    return replace(finding, evidence=(*finding.evidence[:4], *ends))


def broken_in_stop(ends: Iterable[RankExit]) -> list[str]:
    """Return a line for each of the first ranks that raised an unrelated exception while stopping.

    Such an exception is not the cause of the end, but may explain why nothing was saved.
    """
    lines = []
    for end in ends:
        if not end.stopped or end.failure is None or end.failure.type in STOP_EXCEPTIONS:
            continue
        # Not of a lost peer: at a stop ranks end one by one, and the others notice that.
        if weigh_texts([end.failure.root]) is None:
            line = f"while it stopped, rank {end.rank} raised {end.failure.headline}"
            lines.append((end.first_ns, line))
    return [shorten(line) for _, line in sorted(lines)[:2]]


def before_stop(ends: Sequence[RankExit], counters: Sequence[Mapping[str, Any]]) -> Finding | None:
    """Return where ranks were when the run was asked to end; None if it moved."""
    positions = [end.standing for end in ends if end.standing is not None]
    # A rank whose position is unknown may have been at work.
    if len(positions) < len(ends) or not _stand_still(positions):
        return None
    stuck = [replace(position, late_alone=True) for position in positions]
    finding = judge_hang(stuck, uneven=observations.uneven(counters))
    if finding is None:
        return None
    evidence = (
        f"nothing had moved before: {finding.what}",
        *finding.evidence,
        *other_troubles(ends),
    )
    fix = LOOK_AT_LINE if finding.fix.startswith(LOOK_AT_LINE) else finding.fix
    return replace(finding, evidence=tuple(dict.fromkeys(evidence))[:7], fix=fix)


def _stand_still(positions: Sequence[Position]) -> bool:
    """Return whether no rank works: each waits, sleeps, polls, has ended, or is kept alive."""
    if hangs(positions) and waiting.picture(positions) is not None:
        return True
    is_waited_for = any(each.waits for each in positions)
    # where nobody waits and nothing was counted, it may be a server
    if not is_waited_for and not any(
        each.kept or each.batches or each.steps or each.threads for each in positions
    ):
        return False
    return all(
        each.ended or each.kept or (_is_idle(each, is_waited_for) and not each.moving)
        for each in positions
    )


def _is_idle(position: Position, is_waited_for: bool) -> bool:
    """Return whether a rank does nothing; one that others wait for may poll a file."""
    return position.flying or (not position.active if is_waited_for else position.still)


def other_troubles(ends: Sequence[RankExit]) -> tuple[str, ...]:
    """Return what else went wrong, a line each with its ranks; alone it is not a cause.

    Exceptions that ended threads, and what scripts had changed when they waited for other ranks.
    """
    ranks: dict[str, list[int]] = {}
    for end in ends:
        for text in (*end.changes, *end.threads, *_swallowed(end)):
            ranks.setdefault(text, []).append(end.rank)
    return tuple(f"in {named(members)}, {text}" for text, members in ranks.items())


def _swallowed(end: RankExit) -> list[str]:
    said = end.failure.headline if end.failure is not None and end.swallowed else ""
    return [f"{said} ended the script, and its process has status 0"] if said else []


def with_meeting_fix(finding: Finding, ends: Iterable[RankExit]) -> Finding:
    """Return the finding with the fix for ranks that do not meet, if their scripts are why."""
    changed = any(end.changes for end in ends)
    return replace(finding, fix=LEAVE_THEM) if changed else finding


def with_start(finding: Finding, warnings: Iterable[Finding]) -> Finding:
    """Return the finding with what the start had found out about the network, if that is why."""
    start = waiting.unreached_at_start(warnings)
    if start is None or finding.name not in _NO_TRANSFER:
        return finding
    evidence = (waiting.at_start(start), *finding.evidence)
    return replace(finding, evidence=evidence, why=start.why, fix=start.fix)


def _failed_too(end: RankExit) -> str:
    if end.failure is None:
        return f"rank {end.rank} failed too, with exit code {end.code}"
    return f"rank {end.rank} failed too: {end.failure.headline}"


def _same_way(one: RankExit, other: RankExit) -> bool:
    """Return whether two ranks failed in the same way.

    They raised the same exception at the same place of the user's code, or have the same exit code
    without an exception.
    """
    if weigh(one) != weigh(other):
        return False
    if one.failure is None or other.failure is None:
        return one.failure is other.failure and one.code == other.code
    return one.failure.type == other.failure.type and _place_of(one) == _place_of(other)


def _place_of(end: RankExit) -> object:
    """Return where a rank raised its exception, equal on nodes that hold copies of the file."""
    known = end.position if end.position and end.position.content else None
    return known.alike(numbered=False) if known else end.failure and end.failure.place
