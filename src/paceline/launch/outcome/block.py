"""Render a verdict as the final block of lines, in a fixed order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.launch.outcome.root_cause import Verdict
from paceline.launch.outcome.weight import CAUSE, weigh
from paceline.text.wording import named, shorten

# A block must fit on one screen, below the last lines of the script.
MOST_LINES = 15
_MOST_EVIDENCE = 5


def render(
    verdict: Verdict,
    *,
    exit_status: int,
    run_dir: str,
    attempts: int = 1,
    resume_lines: Sequence[str] = (),
) -> list[str]:
    """Return the lines of the final block, at most ``MOST_LINES``.

    Lines about resuming, at most two, are never cut.
    """
    finding = verdict.finding
    first = f"{finding.what}   [{finding.code} {finding.name}]"
    before = [_label(verdict) + first]
    if finding.where:
        before.append(f"  where: {finding.where}")
    after = [f"  why: {finding.why}"] if finding.why else []
    if finding.advice:
        after.append(f"  {finding.advice}")
    after += [f"  {finding.more}", *_about_the_others(verdict)]
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    last = f"exit status {exit_status}{tried} · run folder {run_dir}"
    num_free = MOST_LINES - len(before) - len(after) - len(resume_lines) - 1
    evidence = [f"  {line}" for line in finding.evidence[: min(_MOST_EVIDENCE, num_free)]]
    return [*map(shorten, (*before, *evidence, *after)), *resume_lines, shorten(last)]


def _label(verdict: Verdict) -> str:
    """Return the start of the first line.

    An exception that was seen is a cause; every other cause is inferred and called likely.
    """
    if verdict.label or not verdict.causes:
        return verdict.label
    end = verdict.end
    has_exception = end is not None and end.failure is not None and weigh(end) == CAUSE
    return "cause: " if has_exception else "likely cause: "


def _about_the_others(verdict: Verdict) -> list[str]:
    """Return a line for each other failure, one for the victims, and one for lost nodes."""
    lines = [*verdict.threads[:2], *verdict.others[:2]]
    if len(verdict.others) > 2:
        lines.append(f"and {len(verdict.others) - 2} more failed independently")
    if verdict.victims:
        lines.append(f"{named(verdict.victims)}: stopped {_why_stopped(verdict)}")
    if verdict.lost and verdict.causes:
        lines.append(f"{', '.join(verdict.lost)}: not heard of since")
    return lines


def _why_stopped(verdict: Verdict) -> str:
    if verdict.causes:
        return f"because {named(verdict.causes)} failed"
    return "because the node was lost" if verdict.lost else "by a peer that is not visible"
