"""What is known about one property of a script on one number of ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.errors import Finding

KEPT, BROKEN, NOTE, NOT_JUDGED = "kept", "broken", "note", "not judged"
PROVEN = "proven"


@dataclass(frozen=True)
class Verdict:
    """A property on one number of ranks."""

    state: str  # ``"kept"``, ``"proven"``, ``"broken"``, ``"note"`` or ``"not judged"``
    reason: str = ""  # what was compared, or why nothing could be
    finding: Finding | None = None  # what is wrong; None unless broken or a note

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data, with the name of its finding."""
        name = self.finding.name if self.finding is not None else None
        return {"state": self.state, "reason": self.reason, "finding": name}


def kept(reason: str) -> Verdict:
    """Return that a property is kept."""
    return Verdict(KEPT, reason)


def not_judged(reason: str) -> Verdict:
    """Return that a property cannot be judged."""
    return Verdict(NOT_JUDGED, reason)


def broken(finding: Finding) -> Verdict:
    """Return that a property is broken; a finding that is only a hint is a note."""
    state = NOTE if finding.severity == "hint" else BROKEN
    return Verdict(state, finding.what, finding)
