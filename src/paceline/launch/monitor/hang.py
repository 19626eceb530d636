"""Decide whether a run hangs, and which rank is the cause, from the positions of all ranks. Pure.

``hangs`` decides whether, ``judge`` which: a rank that waits in a collective is not the cause; a
rank that has not reached it, or is in another one, is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from paceline import deadlines
from paceline.errors import Finding
from paceline.launch.monitor.position import DATA, Position, grouped, kinship, shown_path
from paceline.launch.monitor.proof import Call, HangProof, difference, odd_pair
from paceline.launch.monitor.waiting import longer
from paceline.text.wording import duration, few_lines, has_or_have, is_or_are, named, wait_or_waits

# Findings that explain why ranks are in different places; the others only report that they are.
_REASONS = ("conditional-collective", "uneven-inputs", "rank-ended-early")
_SAME_ORDER = (
    "make every rank call the same collectives in the same order; look for code for some ranks only"
)
LOOK_AT_LINE = "look at what that line waits for: a file, a lock, a queue, a worker"
MORE_TIME = (
    "look at what that line waits for; if it may take so long: init_process_group({}),"
    " session.once(...)"
)
SAME_SIZE = (
    "the tensors of all ranks must have one shape and dtype: pad or cast them, or gather their"
    " sizes first"
)
_SAME_ARGUMENTS = "compare what the ranks give that call: src or dst, group, shape, dtype"
_USUAL_STEPS = 10  # a rank without progress for this many usual steps gets a notice


def limit_s(
    requested_s: float | None,  # ``--hang-timeout``, None if it was not given
    *,
    step_s: float,  # usual time of a step, 0 if unknown
) -> float:
    """Return the time without progress after which a rank that others wait for is reported."""
    if requested_s is not None:
        return requested_s
    return max(deadlines.scaled(deadlines.HANG_NOTICE), _USUAL_STEPS * step_s)


def hangs(positions: Sequence[Position]) -> bool:
    """Return whether the run hangs.

    It does if a rank waits in a collective and all ranks outside of one make no progress either, or
    if no rank waits for another and all have been idle in their own code for long.
    """
    living = [position for position in positions if not position.ended]
    if not living:
        return False
    if any(position.waits and position.late for position in living):
        return all(position.waits or position.late for position in living)
    return all(position.late_alone and position.still for position in living)


def judge(
    positions: Sequence[Position],  # positions of all ranks that answered, at the same moment
    *,
    uneven: Finding | None = None,  # the finding about uneven numbers of batches, if there is one
    # no rank waits: a collective failed because the ranks sent data that did not match
    broken: bool = False,
    # the timeout of the process group, if it has ended the wait; else 0
    ended_after_s: float = 0.0,
) -> Finding | None:
    """Return the likely cause of a hang; None if the positions do not show it."""
    living = [position for position in positions if not position.ended]
    waiting = [position for position in living if position.waits]
    absent = [position for position in living if not position.waits]
    absence_hangs = bool(waiting) or all(position.late_alone for position in absent)
    if absent and absence_hangs and not broken:
        if waiting and ended_after_s:
            return _timed_out(absent, waiting, positions, ended_after_s)
        return _stuck(absent, waiting, positions)
    if uneven is not None:
        return replace(uneven, evidence=(*uneven.evidence, *_lines(positions))[:5])
    return _judge_waiting(waiting, positions, broken=broken)


def _judge_waiting(
    waiting: Sequence[Position], positions: Sequence[Position], *, broken: bool
) -> Finding | None:
    """Return why ranks wait, if no living rank is absent; None if the positions do not show it."""
    guarded = [position for position in waiting if position.guard and not position.is_between_two]
    if guarded and len(guarded) < len(positions):
        return _conditional(guarded, positions)
    ended = [position for position in positions if position.ended]
    if waiting and ended:
        return _some_have_ended(ended, waiting, positions)
    if len(grouped(waiting)) > 1:
        return _different(waiting, positions)
    all_wait = len(waiting) == len(positions) > 1
    return _all_together(waiting) if all_wait and not broken else None


def judge_proven(
    positions: Sequence[Position],  # positions of all ranks
    proof: HangProof,  # the ranks that can never continue, and their calls
    *,
    uneven: Finding | None = None,  # the finding about uneven numbers of batches, if there is one
) -> Finding:
    """Return the cause of a hang that is proven."""
    stuck = [position for position in positions if position.rank in proof.ranks]
    finding = judge(stuck, uneven=uneven)
    calls = _calls(proof.calls)
    gone = [position for position in stuck if position.rank in proof.destroyed]
    if gone:
        finding = _group_destroyed(gone, [one for one in stuck if one not in gone])
    elif finding is None or not _explains(finding, proof):
        finding = _other_calls(stuck, proof) if calls else _waiting_in_turn(stuck)
    evidence = tuple(dict.fromkeys((*finding.evidence, *calls)))[:5]
    why = "proven: no rank can leave its place, and no bytes move between them"
    return replace(finding, evidence=evidence, why=finding.why or why)


def _explains(finding: Finding, proof: HangProof) -> bool:
    """Return whether a finding says at least as much as the calls of a proof."""
    if finding.name in _REASONS:
        return True
    operations = {call.name for call in proof.calls.values()}  # of a circle none, of two sizes one
    return finding.name == "collective-mismatch" and len(operations) > 1


def _calls(calls: Mapping[int, Call]) -> tuple[str, ...]:
    """Return a line for each different call with the same sequence number."""
    groups: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call.words, []).append(rank)
    return tuple(f"{named(ranks)} called {words}" for words, ranks in groups.items())


def _other_calls(stuck: Sequence[Position], proof: HangProof) -> Finding:
    first, other = odd_pair(proof.calls)
    one_operation = proof.calls[first].name == proof.calls[other].name
    return Finding(
        "collective-mismatch",
        difference(proof.calls),
        where=_where([position for position in stuck if position.rank == first] or stuck),
        evidence=_lines(stuck),
        fix=SAME_SIZE if one_operation else _SAME_ORDER,
    )


def _waiting_in_turn(stuck: Sequence[Position]) -> Finding:
    between_two = any(position.is_between_two for position in stuck)
    groups = list(dict.fromkeys(_group(position) for position in stuck if position.group))
    what, fix = "in a circle", _SAME_ORDER
    if between_two:
        what, fix = "to send or receive", "let one of them send before it receives, or use isend"
    elif len(groups) > 1:
        what = f"in different groups ({' and '.join(groups[:4])})"
    places = {position.place for position in stuck}
    lines = [
        f"{_with_host([position])}: {position.doing}{_called_from(position, places)}"
        + ("" if position.is_between_two else f", in {_group(position)}")
        + _for([position])
        for position in stuck
    ]
    return Finding(
        "collective-mismatch",
        f"{_ranks(stuck)} wait for each other {what}, and none can continue",
        where=_where(stuck),
        evidence=few_lines(lines, 4),
        fix=fix,
    )


def _group(position: Position) -> str:
    """Return the group of a collective in words: ``group data (ranks 0-1)``."""
    if position.group_name == "default_pg":
        return "the default group"
    members = f" ({named(position.members)})" if position.members else ""
    return f"group {position.group_name or position.group}{members}"


def _called_from(position: Position, places: Collection[str]) -> str:
    """Return the line that called a function in which all ranks wait; empty if lines differ."""
    users = [frame for frame in position.frames if frame.user]
    if len(places) > 1 or len(users) < 2:
        return ""
    return f", called from {shown_path(users[-2].file)}:{users[-2].line}"


def _group_destroyed(gone: Sequence[Position], waiting: Sequence[Position]) -> Finding:
    return Finding(
        "rank-ended-early",
        f"{_with_host(gone)} {has_or_have(gone)} destroyed the process group in which"
        f" {_ranks(waiting)} {wait_or_waits(waiting)}: {waiting[0].doing}",
        where=_where(gone),
        evidence=_lines([*waiting, *gone]),
        fix="let all ranks go through the same collectives before destroy_process_group()",
    )


def _timed_out(
    absent: Sequence[Position],
    waiting: Sequence[Position],
    positions: Sequence[Position],
    limit_s: float,
) -> Finding:
    """Return the finding that the process group's timeout has ended a wait for absent ranks."""
    first = absent[0]
    place = f"; {_ranks([first])} was in {first.spot}" if first.frames else ""
    limit = duration(limit_s)
    return Finding(
        "rank-stuck-in-data" if first.kind == DATA else "rank-stuck-in-code",
        f"{_ranks(waiting)} waited {limit} for {_ranks(absent)}, until the timeout of the process"
        f" group, in {waiting[0].doing}{place}",
        where=_where(absent),
        evidence=_lines(positions),
        fix=MORE_TIME.format(f"timeout=... above {limit}"),
    )


def _stuck(
    absent: Sequence[Position], waiting: Sequence[Position], positions: Sequence[Position]
) -> Finding:
    longest = max(absent, key=lambda position: position.idle_s)
    alike = [position for position in absent if position.kind == longest.kind]
    data = longest.kind == DATA
    pronoun = "it" if len(alike) == 1 else "them"
    others = f"; {_ranks(waiting)} {wait_or_waits(waiting)} for {pronoun}" if waiting else ""
    others += kinship(absent, waiting)
    return Finding(
        "rank-stuck-in-data" if data else "rank-stuck-in-code",
        f"{_with_host(alike)} {has_or_have(alike)} {longest.stuck}{others}",
        where=_where(alike),
        evidence=_lines(positions),
        why="" if waiting else "no rank makes progress or uses the CPU",
        fix=f"{LOOK_AT_LINE}; if it may take so long: --hang-timeout {longer(longest.idle_s)}",
    )


def _conditional(guarded: Sequence[Position], positions: Sequence[Position]) -> Finding:
    first = guarded[0]
    return Finding(
        "conditional-collective",
        f"{_with_host(guarded)} {is_or_are(guarded)} in a collective that not all"
        f" ranks reach: {first.doing}, under {first.guard}",
        where=_where(guarded),
        evidence=_lines(positions),
        why="a collective returns when every rank has called it",
        fix="call it on all ranks, outside that block, and use the result on one",
    )


def _different(waiting: Sequence[Position], positions: Sequence[Position]) -> Finding:
    groups = grouped(waiting)
    smallest = min(groups, key=len)
    rest = next(group for group in groups if group is not smallest)
    return Finding(
        "collective-mismatch",
        f"ranks are in different collectives: {_ranks(smallest)} in {smallest[0].doing}, "
        f"{_ranks(rest)} in {rest[0].doing}",
        where=_where(smallest),
        evidence=_lines(positions),
        fix=_SAME_ORDER,
    )


def _some_have_ended(
    ended: Sequence[Position], waiting: Sequence[Position], positions: Sequence[Position]
) -> Finding:
    fewer = all(early.steps < other.steps for early in ended for other in waiting)
    name = "uneven-inputs" if fewer else "rank-ended-early"
    count = f" after {ended[0].steps} steps" if ended[0].steps else ""
    return Finding(
        name,
        f"{_with_host(ended)} {has_or_have(ended)} ended{count}, and "
        f"{_ranks(waiting)} still {wait_or_waits(waiting)}: {waiting[0].doing}",
        where=_where(ended),
        evidence=_lines(positions),
        fix=(
            "give all ranks the same number of batches (DistributedSampler, drop_last, or"
            " session.loader)"
            if fewer
            else "let all ranks go through the same collectives before they end"
        ),
    )


def _all_together(waiting: Sequence[Position]) -> Finding:
    least = min(position.seq for position in waiting)
    behind = [position for position in waiting if position.seq == least]
    lagging = f"; {_ranks(behind)} the furthest behind" if len(behind) < len(waiting) else ""
    why, fix = _why_none_returns(waiting)
    return Finding(
        "collective-timeout",
        f"all ranks wait in the same collective{_for(waiting).removeprefix(',')}:"
        f" {waiting[0].doing}{lagging}",
        where=_where(waiting),
        evidence=_lines(waiting),
        why=why,
        fix=fix,
    )


def _why_none_returns(waiting: Sequence[Position]) -> tuple[str, str]:
    """Return why a collective that all ranks have called may not return, and what to try."""
    if any(position.backend == "nccl" for position in waiting):
        return (
            "every rank has called it, so what fails is the transfer: network, NCCL, a GPU",
            "try --nccl-debug, and NCCL_P2P_DISABLE=1 if GPUs share a node",
        )
    if len({position.host for position in waiting}) > 1:
        return (
            "every rank has called it: the transfer between the hosts fails, or arguments differ",
            "let all TCP ports pass between the hosts (iptables -S INPUT shows rules); else "
            + _SAME_ARGUMENTS,
        )
    return "every rank has called it, likely with other arguments", _SAME_ARGUMENTS


def _lines(positions: Sequence[Position]) -> tuple[str, ...]:
    """Return a line for each group, at most four: ``ranks 0-2: all_reduce #812, train.py:91``."""
    groups = sorted(grouped(positions), key=len)
    lines = [
        f"{_with_host(group)}: {group[0].doing}{_for(group)}{_batches(group)}" for group in groups
    ]
    said = [f"in rank {at.rank}, {at.printed}" for at in positions if at.printed and not at.waits]
    more = sum(len(group) for group in groups[4:])
    return (*said[:1], *lines[:4], *[f"and {more} ranks elsewhere"] * bool(more))


def _for(group: Sequence[Position]) -> str:
    idle = min(position.idle_s for position in group)
    return f", for {idle:.0f} s" if idle >= 1 and not group[0].ended else ""


def _batches(group: Sequence[Position]) -> str:
    counts = {position.batches for position in group}
    return f", after {counts.pop()} batches" if len(counts) == 1 and max(counts) > 0 else ""


def _ranks(group: Sequence[Position]) -> str:
    return named(position.rank for position in group)


def _with_host(group: Sequence[Position]) -> str:
    hosts = {position.host for position in group if position.host}
    suffix = f" ({hosts.pop()})" if len(hosts) == 1 else ""
    return _ranks(group) + suffix


def _where(group: Sequence[Position]) -> str:
    hosts = ", ".join(sorted({position.host for position in group if position.host})[:4])
    return f"{_ranks(group)} on {hosts}" if hosts else _ranks(group)
