"""Describe a text that shows an error, and of which nothing else names the cause. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.diagnose.explain.candidates import Candidate, place_of, quoted, quoted_frame
from paceline.diagnose.explain.scan import Scanned
from paceline.signatures.lines import Line
from paceline.signatures.tier import Tier
from paceline.signatures.tracebacks import Frame


def unexplained_error(scanned: Scanned, before: int) -> Candidate | None:
    """Return a candidate for error lines that nothing else explains; None without such lines.

    Args:
        scanned: The scanned text.
        before: Line number from which all errors are consequences.
    """
    healthy = [*scanned.of("progress"), *scanned.of("success")]
    # Training continued after errors before this line.
    last_healthy = max((match.line.number for match in healthy), default=-1)
    errors = [line for line in scanned.errors if last_healthy < line.number < before]
    if errors:
        return _unknown_error(errors, scanned.tracebacks.cut)
    return _truncated(scanned) if scanned.tracebacks.cut else None


def _unknown_error(errors: Sequence[Line], cut: Sequence[Frame]) -> Candidate:
    return Candidate(
        "cause-unknown",
        Tier.UNEXPLAINED,
        errors[0].number,
        "the text speaks of an error whose cause is not known here",
        where=_place(errors[0], cut),
        evidence=quoted(errors),
        fix="look at the lines before the first of these in the full output of that rank",
        source=errors[0].source,
    )


def _truncated(scanned: Scanned) -> Candidate:
    """Return the candidate for a text that ends inside a traceback."""
    cut = scanned.tracebacks.cut
    if all(frame.launcher and not frame.user for frame in cut):
        return Candidate(
            "launcher-summary-only",
            Tier.SUMMARY,
            scanned.num_lines,
            "the text breaks off in a traceback of the launcher; the error itself is not in it",
            evidence=(quoted_frame(cut[-1]),),
            fix="look at the lines after it, and at the output of the ranks themselves",
        )
    last = next(iter(scanned.tails.values()))[-1]
    return Candidate(
        "cause-unknown",
        Tier.UNEXPLAINED,
        last.number,
        "the text breaks off inside a traceback",
        where=_place(last, cut),
        evidence=(quoted_frame(cut[-1]),),
        fix="look at the end of this traceback in the full output: its last line names the error",
        source=last.source,
    )


def _place(line: Line, cut: Sequence[Frame]) -> str:
    """Return the user's last frame in a cut traceback; else the rank or the host of a line."""
    frames = [frame for frame in cut if frame.user]
    return frames[-1].place if frames else place_of(line, None)
