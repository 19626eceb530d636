"""Write the notice about ranks that have waited for long while no hang is proven. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from paceline import deadlines
from paceline.errors import Finding, Notice
from paceline.launch.monitor.position import STOPPED, UNKILLABLE, Position, grouped, kinship
from paceline.text.wording import duration, few_lines, has_or_have, is_or_are, named

_LINES = 4


@dataclass(frozen=True)
class Picture:
    """What ranks wait for."""

    key: str  # equal for two pictures whose differences are not worth another notice
    notice: Notice  # the text
    once: bool = False  # whether it is printed once an attempt, also after progress


def stopped(positions: Sequence[Position]) -> Picture | None:
    """Return the picture of ranks that a signal has stopped, None if none is stopped."""
    halted = [position for position in positions if position.state == STOPPED]
    if not halted:
        return None
    waiting = [position for position in positions if position.waits]
    others = f"; {_wait(waiting)}" if waiting else ""
    notice = Notice(
        f"{named(position.rank for position in halted)} {is_or_are(halted)} stopped (state T)"
        f"{others}",
        tuple(
            f"rank {position.rank}: process {position.pid} on {position.host}"
            for position in halted[:_LINES]
        ),
        advice=(
            "to let it continue: kill -CONT"
            f" {' '.join(str(position.pid) for position in halted[:_LINES])}"
        ),
    )
    return Picture(f"stopped {sorted(position.rank for position in halted)}", notice)


def outlived(positions: Sequence[Position]) -> Picture | None:
    """Return the picture of ranks that do not end although their script is done, else None."""
    kept = [position for position in positions if position.kept and position.late]
    if not kept:
        return None
    since_s, ranks = min(each.idle_s for each in kept), [each.rank for each in kept]
    notice = Notice(
        f"{named(ranks)} {has_or_have(ranks)} made no progress for {since_s:.0f} s: the script is"
        " done, and something keeps the process alive",
        few_lines([_is_in(position, several=False) for position in kept], _LINES),
        advice="nothing ends this; threading.Thread(..., daemon=True) does not outlive the script",
    )
    return Picture(f"outlived {sorted(ranks)}", notice)


def after_exception(positions: Sequence[Position]) -> Picture | None:
    """Return the picture of ranks that others wait for and that have met an exception, else None.

    None as long as a rank outside of a collective works: one that handles an exception goes on.
    """
    absent = [position for position in positions if not (position.ended or position.waits)]
    since_s = max((position.idle_s for position in positions if position.waits), default=0.0)
    since_s = min([since_s, *(position.idle_s for position in absent)])
    texts = [text for position in absent for text in position.exceptions]
    has_dead_thread = any(position.threads for position in absent)
    limit_s = deadlines.THREAD_DIED_NOTICE if has_dead_thread else deadlines.EXCEPTION_NOTICE
    all_idle = all(position.still and not position.moving for position in absent)
    if not texts or not all_idle or since_s < deadlines.scaled(limit_s):
        return None
    seen = picture(positions)
    return seen and replace(seen, key=f"exception {sorted(texts)}", once=True)


def picture(
    positions: Sequence[Position],  # positions of all ranks, for which ``hang.hangs`` is true
    *,
    unreached: Finding | None = None,  # that data of other nodes does not arrive, by the start
) -> Picture | None:
    """Return the picture of ranks that make no progress; None if they are transferring data."""
    seen = _picture(positions)
    more = [f"in rank {each.rank}, {text}" for each in positions for text in each.exceptions][:2]
    if unreached is not None and all(each.waits or each.ended for each in positions):
        more += [at_start(unreached), unreached.advice]
    if seen is None or not more:
        return seen
    return replace(seen, notice=replace(seen.notice, details=(*seen.notice.details, *more)))


def unreached_at_start(warnings: Iterable[Finding]) -> Finding | None:
    """Return the start's warning that data of other nodes does not arrive; None without one."""
    return next((each for each in warnings if each.name == "interface-not-routed"), None)


def at_start(finding: Finding) -> str:
    """Return a finding of the start in a line, as evidence for what followed."""
    return f"known since the start: {finding.what} [{finding.code}]"


def _picture(positions: Sequence[Position]) -> Picture | None:
    living = [position for position in positions if not position.ended]
    waiting = [position for position in living if position.waits]
    absent = [position for position in living if not position.waits]
    if waiting and absent:
        return _absent(absent, waiting)
    if absent:
        return _nobody_waits(absent)
    if any(position.moving for position in waiting):
        return None
    return _all_wait(waiting, positions)


def _absent(absent: Sequence[Position], waiting: Sequence[Position]) -> Picture:
    longest = max(absent, key=lambda position: position.idle_s)
    since_s = min(max(position.idle_s for position in waiting), longest.idle_s)
    several = len({position.host for position in (*absent, *waiting)}) > 1
    lines = [_is_in(position, several) for position in absent[1:]]
    lines.append(f"{named(position.rank for position in waiting)}: {waiting[0].doing}")
    notice = Notice(
        f"{_wait(waiting)} for {named(position.rank for position in absent)}"
        f"{kinship(absent, waiting)} for {since_s:.0f} s (hang?): {_is_in(absent[0], several)}",
        few_lines(lines, _LINES),
        advice=_advice(waiting, since_s),
    )
    return Picture(_key("absent", absent, waiting), notice)


def _all_wait(waiting: Sequence[Position], positions: Sequence[Position]) -> Picture:
    since_s = min(position.idle_s for position in waiting)
    calls = {(position.call, position.seq, position.group) for position in waiting}
    in_groups = all(position.flying and not position.is_between_two for position in waiting)
    together = in_groups and len(calls) == 1
    ended = [position.rank for position in positions if position.ended]
    words = "in the same collective" if together else "for each other"
    after = f"; {named(ended)} {has_or_have(ended)} ended" if ended else ""
    lines = [
        f"{named(position.rank for position in group)}: {group[0].doing}"
        for group in grouped(waiting)
    ]
    notice = Notice(
        f"{_wait(waiting)} {words} for {since_s:.0f} s (hang?){after}",
        few_lines(lines, _LINES),
        advice=_advice(waiting, since_s),
    )
    return Picture(_key("together", (), waiting), notice)


def _nobody_waits(absent: Sequence[Position]) -> Picture:
    since_s = min(position.idle_s for position in absent)
    several = len({position.host for position in absent}) > 1
    lines = [_is_in(position, several) for position in absent]
    notice = Notice(
        f"no rank has made progress for {since_s:.0f} s, and none waits for another (a server, or a"
        " hang?)",
        few_lines(lines, _LINES),
        advice=f"nothing ends this; --hang-timeout {longer(since_s)} would",
    )
    return Picture(_key("alone", absent, ()), notice)


def _wait(waiting: Sequence[Position]) -> str:
    ranks = [position.rank for position in waiting]
    return f"{named(ranks)} {has_or_have(ranks)} been waiting"


def _is_in(position: Position, several: bool) -> str:
    """Return where a rank is, with its host if there are several hosts."""
    rank = f"rank {position.rank} ({position.host})" if several else f"rank {position.rank}"
    is_no_place = position.state in (STOPPED, UNKILLABLE) or position.kept
    where = position.spot if is_no_place else f"in {position.spot}"
    return f"{rank} is {where}{_facts(position)}"


def _facts(position: Position) -> str:
    """Return the signs of activity of an absent rank, so that work is not mistaken for a hang."""
    if position.moving:
        return ", bytes move on its sockets"
    return "" if position.still or position.state in (STOPPED, UNKILLABLE) else ", and is active"


def _advice(waiting: Sequence[Position], since_s: float) -> str:
    timeouts = [position.timeout_s for position in waiting if position.timeout_s > 0]
    sooner = f"`--hang-timeout {longer(since_s)}` sooner"
    if not timeouts:
        return f"torch's timeout of the process group ends this wait, {sooner}"
    return f"torch ends this wait after {duration(min(timeouts))}, {sooner}"


def longer(seconds: float) -> int:
    """Return a round number of seconds, at least twice as long."""
    return next(
        limit for limit in (60, 300, 600, 1800, 3600, 7200, 86400, 10**6) if limit >= 2 * seconds
    )


def _key(kind: str, absent: Sequence[Position], waiting: Sequence[Position]) -> str:
    """Return which ranks are absent and where, and which wait in which collective.

    The line of a busy rank changes all the time and is left out.
    """
    places = [
        (position.rank, position.state, position.spot if position.still else "")
        for position in absent
    ]
    waits = [(position.rank, position.call, position.seq, position.group) for position in waiting]
    return f"{kind} {sorted(places)} {sorted(waits)}"
