"""From a verdict to the lines of the final block, in their fixed order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.launch.outcome.root_cause import CAUSE, Verdict, weigh
from paceline.text.wording import named, shorten

# A block fits on a screen with the last lines of the script above it.
MOST_LINES = 15


def render(
    verdict: Verdict, *, exit_status: int, run_dir: str, attempts: int = 1, again: Sequence[str] = ()
) -> list[str]:
    """Return the lines of the final block, at most ``MOST_LINES``; those about going on (two at most) whole."""
    finding = verdict.finding
    first = f"{finding.what}   [{finding.code} {finding.name}]"
    before = [_label(verdict) + first]
    if finding.where:
        before.append(f"  where: {finding.where}")
    after = [f"  {line}" for line in (f"why: {finding.why}" if finding.why else "", finding.advice) if line]
    after += [f"  {finding.more}", *_about_the_others(verdict)]
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    last = f"exit status {exit_status}{tried} · run folder {run_dir}"
    room = MOST_LINES - len(before) - len(after) - len(again) - 1
    evidence = [f"  {line}" for line in finding.evidence[: min(5, room)]]
    return [*map(shorten, (*before, *evidence, *after)), *again, shorten(last)]


def _label(verdict: Verdict) -> str:
    """Return what the first line begins with; an exception that was seen is the cause, the rest is inferred."""
    if verdict.hung:
        return "hang: "
    if not verdict.causes:
        return ""
    end = verdict.end
    has_exception = end is not None and end.failure is not None and weigh(end) == CAUSE
    return "cause: " if has_exception else "likely cause: "


def _about_the_others(verdict: Verdict) -> list[str]:
    """Return a line for each of those who failed too, and one for those who were dragged along."""
    lines = [*verdict.threads[:2], *verdict.others[:2]]
    if len(verdict.others) > 2:
        lines.append(f"and {len(verdict.others) - 2} more failed by themselves")
    if verdict.victims:
        lines.append(f"{named(verdict.victims)}: stopped {_why_stopped(verdict)}")
    if verdict.lost and verdict.causes:
        lines.append(f"{', '.join(verdict.lost)}: not heard of since")
    return lines


def _why_stopped(verdict: Verdict) -> str:
    if verdict.causes:
        return f"because {named(verdict.causes)} failed"
    return "because the node was lost" if verdict.lost else "by a peer that is not visible"
