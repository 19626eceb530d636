"""Decide which ranks wait for which, and whether a hang is likely or proven, from accounts of
ranks. Pure.

A healthy run must never be accused. Ranks were observed for some seconds only, so the verdict is
one of these:

- ``moving``: ranks change their places from one look to the next, and no rank waits for one that
  does not move.
- ``waits``: ranks wait for others that run, or receive data. It may be a long validation.
- ``busy``: ranks keep a CPU busy in one place, as NCCL does while it waits for the GPU: the cause
  stays open.
- ``stands``: nothing has moved. The finding is likely *if it stays so*, and a warning.
- ``proven``: no rank can ever continue: an error.
- ``unseen``: no stack is visible, so only facts from the kernel are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.errors import Finding, Notice
from paceline.launch.monitor import hang, proof, waiting
from paceline.launch.monitor.position import DATA, STOPPED, Position
from paceline.text.wording import few_lines, is_or_are, named, wait_or_waits
from paceline.why.loops import left_loop
from paceline.why.rank_state import RUNNING, STILL, Account

MOVING, WAITS, BUSY = "moving", "waits", "busy"
STANDS, PROVEN, UNSEEN = "stands", "proven", "unseen"
_LINES = 8
_LOOK_THERE = "look at what that line waits for: a file, a lock, a queue, a worker"
# Replacements for fixes that name an option of paceline run, which did not start this run.
_FIXES = {"rank-stuck-in-data": _LOOK_THERE, "rank-stuck-in-code": _LOOK_THERE}


@dataclass(frozen=True)
class HangVerdict:
    """The verdict on a run."""

    kind: str  # ``MOVING``, ``WAITS``, ``BUSY``, ``STANDS``, ``PROVEN`` or ``UNSEEN``
    notice: Notice  # the observations
    # the cause if it is proven, or likely if nothing changes; else None
    finding: Finding | None = None


def judge(
    accounts: Sequence[Account],  # accounts of all ranks that could be observed; at least one
) -> HangVerdict:
    """Return the verdict on one run."""
    positions = [account.position for account in accounts]
    living = [account for account in accounts if not account.position.ended]
    if not living:
        return HangVerdict(MOVING, Notice("the ranks ended while they were looked at"))
    # Before all else: what is proven stays so, whatever other ranks do.
    certain = _proven(accounts, positions)
    if certain is not None:
        return HangVerdict(PROVEN, _stands_for(living), certain)
    if any(position.state == STOPPED for position in positions):
        return _stopped(accounts)
    if not all(account.is_visible for account in living):
        # Without stacks a rank that spins in NCCL looks as if it ran; bytes show that it works.
        works = all(each.motion == RUNNING and each.position.moving for each in living)
        return (
            HangVerdict(MOVING, _moves_unseen(living))
            if works
            else HangVerdict(UNSEEN, _unseen(living))
        )
    if _is_moving(living):
        return HangVerdict(MOVING, _moving(living))
    return _apart(accounts, living)


def _is_moving(living: Sequence[Account]) -> bool:
    """Return whether some rank runs, and every other rank runs too or receives data."""
    some_run = any(account.motion == RUNNING for account in living)
    return some_run and all(
        account.motion == RUNNING or account.position.moving for account in living
    )


def _proven(accounts: Sequence[Account], positions: Sequence[Position]) -> Finding | None:
    deadlock = next(
        (account.deadlock for account in accounts if account.deadlock is not None), None
    )
    if deadlock is not None:
        return deadlock
    proven = proof.find(account.stand for account in accounts)
    return _for_others(hang.judge_proven(positions, proven)) if proven is not None else None


def _stopped(accounts: Sequence[Account]) -> HangVerdict:
    positions = [account.position for account in accounts]
    halted = [position for position in positions if position.state == STOPPED]
    picture = waiting.stopped(positions)
    assert picture is not None, "somebody is stopped"
    finding = hang.judge(halted + [position for position in positions if position.waits])
    fix = f"kill -CONT {' '.join(str(position.pid) for position in halted)}"
    likely = finding and replace(finding, fix=fix, severity="warning")
    return HangVerdict(STANDS, picture.notice, likely)


def _apart(accounts: Sequence[Account], living: Sequence[Account]) -> HangVerdict:
    """Return the verdict if at least one rank has stayed in its place."""
    waits = [account for account in living if account.position.waits and account.motion != RUNNING]
    if not waits:
        return _nobody_waits(living)
    absent = [account for account in living if account not in waits]
    # A rank that stays in one line and receives bytes may be in a long broadcast, or fetch data.
    moving = any(account.position.moving for account in living)
    if moving or not _all_still(absent):
        return HangVerdict(WAITS, _waits(waits, absent, living))
    # If all that were seen wait, the cause is among those that were not.
    unknown = sorted(set(range(accounts[0].world_size)) - {account.rank for account in accounts})
    if not absent and unknown:
        return HangVerdict(WAITS, _waits_for_unknown(waits, unknown))
    if not absent and not _all_still(waits):
        return HangVerdict(BUSY, _all_busy(waits))
    finding = _likely(accounts)
    return HangVerdict(
        STANDS, _stands_for(living), finding and replace(finding, severity="warning")
    )


def _all_still(accounts: Sequence[Account]) -> bool:
    return all(account.motion == STILL for account in accounts)


def _likely(accounts: Sequence[Account]) -> Finding | None:
    positions = [account.position for account in accounts]
    # A condition on the rank around a line says more than loops that were left.
    uneven = None if any(position.guard for position in positions) else _uneven(accounts)
    finding = hang.judge(positions, uneven=uneven)
    return _for_others(finding) if finding is not None else None


def _for_others(finding: Finding) -> Finding:
    """Return a finding of the launcher with the fix for a run that another launcher started."""
    return replace(finding, fix=_FIXES.get(finding.name, finding.fix))


def _uneven(accounts: Sequence[Account]) -> Finding | None:
    """Return the finding that some waiting ranks have left a loop that other waiting ranks are
    still in.
    """
    waits = [account for account in accounts if account.position.waits]
    for behind in waits:
        for ahead in waits:
            loop = left_loop(behind.loops, ahead.loops)
            if loop is not None:
                return _left(
                    behind.position, ahead.position, loop, [account.position for account in waits]
                )
    return None


def _left(
    behind: Position, ahead: Position, loop: tuple[str, int, int], waits: Sequence[Position]
) -> Finding:
    still = [position.rank for position in waits if position.place == behind.place]
    gone = named(position.rank for position in waits if position.place == ahead.place)
    file, first, last = loop
    return Finding(
        "uneven-inputs",
        f"{gone} left the loop of {file}:{first}-{last}, and {named(still)} {is_or_are(still)}"
        " still in it",
        where=gone,
        why="each waits in a collective that the other does not call",
        fix=(
            "give all ranks the same number of batches (DistributedSampler, drop_last, or"
            " session.loader)"
        ),
    )


# Notices


def _moving(living: Sequence[Account]) -> Notice:
    seconds = max(account.seconds for account in living)
    if all(account.motion == RUNNING for account in living):
        return Notice(
            f"the run is moving: no rank stayed in one place for {seconds:.0f} s", _lines(living)
        )
    return Notice(
        "the run is moving: ranks run, and bytes move on the sockets of the others", _lines(living)
    )


def _waits(
    waits: Sequence[Account], absent: Sequence[Account], living: Sequence[Account]
) -> Notice:
    if not absent:
        what = (
            f"{_named(waits)} {is_or_are(waits)} in collectives, and bytes move between them: no"
            " hang, as far as is visible"
        )
    else:
        what = f"{_named(waits)} {wait_or_waits(waits)} for {_named(absent)}, which {_runs(absent)}"
    return Notice(
        what, _lines(living), advice=_again(living) + ", if this takes longer than it should"
    )


def _runs(absent: Sequence[Account]) -> str:
    working = any(account.motion != STILL for account in absent)
    verb = "works" if len(absent) == 1 else "work"
    return (
        f"{verb}: no hang, as far as is visible"
        if working
        else "stands, while bytes move on sockets"
    )


def _waits_for_unknown(waits: Sequence[Account], unknown: Sequence[int]) -> Notice:
    return Notice(
        f"{_named(waits)} {wait_or_waits(waits)} for others; {named(unknown)}"
        f" {is_or_are(unknown)} not on the hosts that were looked at",
        _lines(waits),
        advice=(
            "look at all hosts: paceline why JOBID, or paceline why NODE..., or files of paceline"
            " why --collect"
        ),
    )


def _all_busy(waits: Sequence[Account]) -> Notice:
    return Notice(
        f"{_named(waits)} {wait_or_waits(waits)} in a collective or for the GPU, and keep a CPU"
        " busy: a long step and a hang look the same",
        _lines(waits),
        advice=_again(waits),
    )


def _nobody_waits(living: Sequence[Account]) -> HangVerdict:
    seconds = max(account.seconds for account in living)
    motions = {account.motion for account in living}
    if RUNNING in motions:
        return HangVerdict(
            MOVING, Notice("the run is moving: no rank is seen to wait for another", _lines(living))
        )
    if motions == {STILL}:
        what = f"no rank has moved for {seconds:.0f} s, and none is seen to wait for another"
        return HangVerdict(STANDS, Notice(what, _lines(living), advice=_again(living)))
    what = (
        f"no rank has left its place for {seconds:.0f} s, and some work there: a long step and a"
        " hang look the same"
    )
    return HangVerdict(BUSY, Notice(what, _lines(living), advice=_again(living)))


def _stands_for(living: Sequence[Account]) -> Notice:
    seconds = max(account.seconds for account in living)
    return Notice(
        f"nothing has moved for {seconds:.0f} s, as long as it was looked at", advice=_again(living)
    )


def _unseen(living: Sequence[Account]) -> Notice:
    lines = [
        f"{named([account.rank])} (process {account.position.pid}): {fact}"
        for account in living
        for fact in account.facts
    ]
    dark = [account for account in living if not account.is_visible]
    what = (
        f"in which line {_named(dark)} {is_or_are(dark)} is not visible:"
        f" {dark[0].error or 'py-spy shows no stack'}"
    )
    return Notice(what, few_lines(lines, 2 * _LINES), advice=_to_see(dark[0].error))


def _moves_unseen(living: Sequence[Account]) -> Notice:
    unseen = _unseen(living)
    what = "no hang, as far as is visible: all ranks run, and bytes move on their sockets"
    return replace(unseen, what=what, details=(unseen.what, *unseen.details))


def _to_see(error: str) -> str:
    if "not installed" in error:
        return 'to see lines: pip install "paceline[why]"'
    if any(word in error.lower() for word in ("permission", "not permitted", "root", "ptrace")):
        return (
            "to see lines: sudo env PATH=$PATH paceline why ..., or start the container with"
            " --cap-add SYS_PTRACE"
        )
    return "to see lines by hand: py-spy dump --pid PID"


def _again(living: Sequence[Account]) -> str:
    longer = waiting.longer(max(account.seconds for account in living))
    return f"to look for longer: paceline why --seconds {longer}"


def _lines(accounts: Sequence[Account]) -> tuple[str, ...]:
    """Return a line for each group of ranks that are in the same places: ``ranks 1-7 (node-b):
    all_reduce, t.py:9``.
    """
    groups: dict[tuple[str, str], list[Account]] = {}
    for account in accounts:
        groups.setdefault((account.position.host, _words(account)), []).append(account)
    lines = [f"{_named(group)} ({host}): {words}" for (host, words), group in groups.items()]
    return few_lines(lines, _LINES)


def _words(account: Account) -> str:
    position = account.position
    if position.ended:
        return "has ended"
    if len(account.places) > 1:
        return " · ".join(account.places[:3]) + (" · ..." if len(account.places) > 3 else "")
    activity = position.doing if position.waits or position.kind == DATA else position.spot
    is_running = account.motion != STILL and not position.waits
    return f"{activity}; {account.facts[0]}" if is_running and account.facts else activity


def _named(accounts: Sequence[Account]) -> str:
    return named(account.rank for account in accounts)
