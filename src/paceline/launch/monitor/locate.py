"""Where ranks stand when nothing moves: positions in, the difference between ranks and its name out.

Pure. ``hangs`` says whether the run waits for something that does not come, ``judge`` what for. A rank that waits
in a collective is never the cause by itself: the cause is who is not there, or who is in another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from paceline import deadlines
from paceline.errors import Finding
from paceline.launch.monitor.position import DATA, Position
from paceline.launch.monitor.proof import Call, Proof
from paceline.launch.monitor.waiting import longer
from paceline.text.wording import named

# Findings that say why ranks are apart, and not only that they are.
_REASONS = ("conditional-collective", "uneven-inputs", "rank-ended-early")
_USUAL_STEPS = 10  # a rank that makes no progress for as long as these is worth a notice


def limit_s(asked: float | None, *, step_s: float) -> float:
    """Return after how long without progress a rank that others wait for is reported.

    Args:
        asked: ``--hang-timeout``, None if it was not given.
        step_s: Usual time of a step, 0 if it is not known.
    """
    if asked is not None:
        return asked
    return max(deadlines.scaled(deadlines.HANG_NOTICE), _USUAL_STEPS * step_s)


def hangs(positions: Sequence[Position]) -> bool:
    """Return whether the run waits for something that does not come.

    Somebody waits in a collective, and everybody who does not is without progress too; or nobody waits for
    anybody, and all stand still in their own code for long.
    """
    living = [each for each in positions if not each.ended]
    if not living:
        return False
    if any(each.waits and each.late for each in living):
        return all(each.waits or each.late for each in living)
    return all(each.late_alone and each.still for each in living)


def judge(positions: Sequence[Position], *, uneven: Finding | None = None, broken: bool = False) -> Finding | None:
    """Name what the run waits for; None if it cannot be told from where the ranks are.

    Args:
        positions: Of all ranks that could be seen, at the same moment.
        uneven: What the numbers of batches say, if they say anything.
        broken: Nobody waits: a collective broke, because what the ranks sent each other did not fit.
    """
    living = [each for each in positions if not each.ended]
    waiting = [each for each in living if each.waits]
    absent = [each for each in living if not each.waits]
    if not broken and absent and (waiting or all(each.late_alone for each in absent)):
        return _stuck(absent, waiting, positions)
    guarded = [each for each in waiting if each.guard]
    if uneven is not None:
        return replace(uneven, evidence=(*uneven.evidence, *_lines(positions))[:5])
    if guarded and len(guarded) < len(positions):
        return _conditional(guarded, positions)
    ended = [each for each in positions if each.ended]
    if waiting and ended:
        return _some_have_ended(ended, waiting, positions)
    if len(_groups(waiting)) > 1:
        return _different(waiting, positions)
    return _all_together(waiting) if len(waiting) == len(positions) > 1 and not broken else None


def judge_proven(positions: Sequence[Position], proof: Proof, *, uneven: Finding | None = None) -> Finding:
    """Name why ranks can never continue.

    Args:
        positions: Of all ranks.
        proof: That they cannot.
        uneven: What the numbers of batches say, if they say anything.
    """
    stuck = [position for position in positions if position.rank in proof.ranks]
    finding = judge(stuck, uneven=uneven)
    calls = _calls(proof.calls)
    says_why = finding is not None and finding.name in _REASONS
    sizes = bool(calls) and len({call.name for call in proof.calls.values()}) == 1
    if finding is None or (not says_why and (sizes or finding.name != "collective-mismatch")):
        finding = _other_calls(stuck, proof) if calls else _waiting_in_turn(stuck)
    evidence = tuple(dict.fromkeys((*finding.evidence, *calls)))[:5]
    why = "proven: no rank can leave its collective, and no bytes move between them"
    return replace(finding, evidence=evidence, why=finding.why or why)


def _calls(calls: Mapping[int, Call]) -> tuple[str, ...]:
    """Return a line for each call that ranks have made under one number."""
    groups: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call.words, []).append(rank)
    return tuple(f"{named(ranks)} called {words}" for words, ranks in groups.items())


def _other_calls(stuck: Sequence[Position], proof: Proof) -> Finding:
    calls = proof.calls
    ranks = sorted(calls, key=lambda rank: (sum(calls[rank].fits(other) for other in calls.values()), rank))
    first = ranks[0]
    other = next(rank for rank in ranks if not calls[first].fits(calls[rank]))
    one, two = calls[first], calls[other]
    what = f"ranks call different collectives: rank {first} {one.words}, rank {other} {two.words}"
    if one.name == two.name:
        what = f"{one.name} #{one.seq} differs in size: {one.size} on rank {first}, {two.size} on rank {other}"
    return Finding(
        "collective-mismatch",
        what,
        where=_where([position for position in stuck if position.rank == first] or stuck),
        evidence=_lines(stuck),
        fix="make every rank call the same collectives with the same shapes in the same order",
    )


def _waiting_in_turn(stuck: Sequence[Position]) -> Finding:
    ranks = named(position.rank for position in stuck)
    return Finding(
        "collective-mismatch",
        f"{ranks} wait for each other in different collectives, and none can continue",
        where=_where(stuck),
        evidence=_lines(stuck),
        fix="make every rank call the same collectives in the same order; look for code for some ranks only",
    )


def _stuck(absent: Sequence[Position], waiting: Sequence[Position], positions: Sequence[Position]) -> Finding:
    longest = max(absent, key=lambda each: each.idle_s)
    alike = [each for each in absent if each.kind == longest.kind]
    data = longest.kind == DATA
    wait, it = ("waits" if len(waiting) == 1 else "wait"), ("it" if len(alike) == 1 else "them")
    others = f"; {named(each.rank for each in waiting)} {wait} for {it}" if waiting else ""
    return Finding(
        "rank-stuck-in-data" if data else "rank-stuck-in-code",
        f"{_with_host(alike)} {'has' if len(alike) == 1 else 'have'} {longest.stuck}{others}",
        where=_where(alike),
        evidence=_lines(positions),
        why="" if waiting else "no rank makes progress or uses the CPU",
        fix="look at what that line waits for: a file, a lock, a queue, a worker; "
        f"if it may take so long: --hang-timeout {longer(longest.idle_s)}",
    )


def _conditional(guarded: Sequence[Position], positions: Sequence[Position]) -> Finding:
    first = guarded[0]
    return Finding(
        "conditional-collective",
        f"{_with_host(guarded)} {'is' if len(guarded) == 1 else 'are'} in a collective that not all ranks reach: "
        f"{first.doing}, under {first.guard}",
        where=_where(guarded),
        evidence=_lines(positions),
        why="a collective returns when every rank has called it",
        fix="call it on all ranks, outside that block, and use the result on one",
    )


def _different(waiting: Sequence[Position], positions: Sequence[Position]) -> Finding:
    groups = _groups(waiting)
    smallest = min(groups, key=len)
    rest = next(group for group in groups if group is not smallest)
    return Finding(
        "collective-mismatch",
        f"ranks are in different collectives: {named(each.rank for each in smallest)} in {smallest[0].doing}, "
        f"{named(each.rank for each in rest)} in {rest[0].doing}",
        where=_where(smallest),
        evidence=_lines(positions),
        fix="make every rank call the same collectives in the same order; look for code for some ranks only",
    )


def _some_have_ended(ended: Sequence[Position], waiting: Sequence[Position], positions: Sequence[Position]) -> Finding:
    fewer = all(one.steps < other.steps for one in ended for other in waiting)
    name = "uneven-inputs" if fewer else "rank-ended-early"
    count = f" after {ended[0].steps} steps" if ended[0].steps else ""
    return Finding(
        name,
        f"{_with_host(ended)} {'has' if len(ended) == 1 else 'have'} ended{count}, and "
        f"{named(each.rank for each in waiting)} still {'waits' if len(waiting) == 1 else 'wait'}: {waiting[0].doing}",
        where=_where(ended),
        evidence=_lines(positions),
        fix="give all ranks the same number of batches (DistributedSampler, drop_last, or session.loader)"
        if fewer
        else "let all ranks go through the same collectives before they end",
    )


def _all_together(waiting: Sequence[Position]) -> Finding:
    least = min(each.seq for each in waiting)
    behind = [each for each in waiting if each.seq == least]
    lagging = f"; {named(each.rank for each in behind)} the furthest behind" if len(behind) < len(waiting) else ""
    return Finding(
        "collective-timeout",
        f"all ranks wait in the same collective for {min(each.idle_s for each in waiting):.0f} s: "
        f"{waiting[0].doing}{lagging}",
        where=_where(waiting),
        evidence=_lines(waiting),
        why="every rank has called it, so what fails is the transfer: network, NCCL, a GPU",
        fix="try --nccl-debug, and NCCL_P2P_DISABLE=1 if GPUs share a node",
    )


def _groups(positions: Iterable[Position]) -> list[list[Position]]:
    """Group ranks by what they do and where, in the order of their ranks."""
    listed = sorted(positions, key=lambda each: each.rank)
    # collectives are counted in each process group, so numbers of different ones cannot be compared
    one_group = len({each.group for each in listed if each.flying}) < 2
    found: dict[str, list[Position]] = {}
    for each in listed:
        found.setdefault(each.doing if one_group else re.sub(r" #\d+", "", each.doing), []).append(each)
    return list(found.values())


def _lines(positions: Sequence[Position]) -> tuple[str, ...]:
    """One line for each group: ``ranks 0-2: all_reduce #812, backward, train.py:91``; four at most."""
    groups = sorted(_groups(positions), key=len)
    lines = [f"{_with_host(group)}: {group[0].doing}{_for(group)}{_batches(group)}" for group in groups]
    more = sum(len(group) for group in groups[4:])
    return (*lines[:4], f"and {more} ranks elsewhere") if more else tuple(lines)


def _for(group: Sequence[Position]) -> str:
    idle = min(each.idle_s for each in group)
    return f", for {idle:.0f} s" if idle >= 1 and not group[0].ended else ""


def _batches(group: Sequence[Position]) -> str:
    counts = {position.batches for position in group}
    return f", after {counts.pop()} batches" if len(counts) == 1 and max(counts) > 0 else ""


def _with_host(group: Sequence[Position]) -> str:
    hosts = {each.host for each in group if each.host}
    suffix = f" ({hosts.pop()})" if len(hosts) == 1 else ""
    return named(each.rank for each in group) + suffix


def _where(group: Sequence[Position]) -> str:
    hosts = ", ".join(sorted({each.host for each in group if each.host})[:4])
    return f"{named(each.rank for each in group)} on {hosts}" if hosts else named(each.rank for each in group)
