"""Explain a run folder from its recorded events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.diagnose.explain.answer import Answer, noticed_before
from paceline.errors import EXIT_OK, Finding, UsageError
from paceline.rundir import events
from paceline.rundir.events import Outcome


def outcome(subject: str) -> Answer | None:
    """Return the outcome of a run; None if the subject is neither a run folder nor its events.

    Raises UsageError if the events have no end: the run continues, or its launcher was killed.
    """
    path = Path(subject)
    folder = path.parent if path.name.startswith("events.") and path.suffix == ".jsonl" else path
    try:
        files = events.paths(folder)
    except (OSError, ValueError):  # not a folder, or not a valid file name
        return None
    if not files:
        return None
    last = events.history_of([events.read(file) for file in files]).outcome
    if last is None:
        raise UsageError.of(
            "input-unreadable",
            f"the run of {folder} has not ended: it continues, or its launcher was killed",
            fix=f"cat {folder}/logs/rank-*.out | paceline explain -",
        )
    return _answer(last, folder)


def _answer(last: Outcome, folder: Path) -> Answer:
    if last.exit_status == EXIT_OK:
        well = Finding("no-error-in-log", f"the run of {folder} ended well", severity="hint")
        survived = tuple(map(_survived, last.findings))
        return Answer((well, *survived), headings=noticed_before(survived))
    unknown = Finding("cause-unknown", f"the run of {folder} failed without a finding")
    return Answer(last.findings or (unknown,), headings=noticed_before(last.findings))


def _survived(finding: Finding) -> Finding:
    """Return a finding of a run that ended well: an error is a warning then."""
    return replace(finding, severity="warning") if finding.severity == "error" else finding
