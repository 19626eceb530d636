"""What lint has to say: the findings of all files, rendered or as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.diagnose.lint.ignore import line_of
from paceline.diagnose.lint.program import Program
from paceline.errors import EXIT_MISUSE, SEVERITIES, Finding, status_of


@dataclass(frozen=True)
class Judged:
    """One file and what was found in it.

    Attributes:
        name: The file as it was given.
        findings: Its findings.
        unreadable: True if it could not be judged.
        program: What a training script expects of its start.
    """

    name: str
    findings: tuple[Finding, ...]
    unreadable: bool = False
    program: Program | None = None


@dataclass(frozen=True)
class Report:
    """The findings of all files.

    Attributes:
        files: The files in the order in which they were given.
    """

    files: tuple[Judged, ...] = field(default=())

    @property
    def findings(self) -> list[Finding]:
        """All findings: by file, of each the gravest first, then by line."""
        return [finding for judged in self.files for finding in _sorted(judged)]

    @property
    def exit_status(self) -> int:
        """2 if a file could not be read, 1 if there is an error, else 0."""
        if any(judged.unreadable for judged in self.files):
            return EXIT_MISUSE
        return status_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain data, as ``--json`` prints them."""
        return {"findings": [finding.to_json() for finding in self.findings]}

    def render(self) -> str:
        """Return the findings as text, file by file; of several files those without a finding are only counted."""
        if len(self.files) == 1 and not self.findings:
            return f"{self.files[0].name}: nothing found"
        paragraphs = ["\n\n".join(_paragraphs(judged)) for judged in self.files if judged.findings]
        return "\n\n".join([*paragraphs, self._summary()] if len(self.files) > 1 else paragraphs)

    def _summary(self) -> str:
        files = f"{len(self.files)} files"
        if not self.findings:
            return f"{files}: nothing found"
        clean = sum(1 for judged in self.files if not judged.findings)
        rest = f"; {clean} file{'s' if clean > 1 else ''} without a finding" if clean else ""
        return f"{files}: {_counts(self.findings)}{rest}"


def _paragraphs(judged: Judged) -> Iterator[str]:
    findings = _sorted(judged)
    yield f"{judged.name}: {_counts(findings)}"
    for finding in findings:
        yield finding.render()


def _counts(findings: list[Finding]) -> str:
    numbers = [(sum(1 for finding in findings if finding.severity == severity), severity) for severity in SEVERITIES]
    return ", ".join(f"{number} {severity}{'s' if number > 1 else ''}" for number, severity in numbers if number)


def _sorted(judged: Judged) -> list[Finding]:
    """The findings of a file in their order, each once."""
    return sorted({finding.render(): finding for finding in judged.findings}.values(), key=_order)


def _order(finding: Finding) -> tuple[int, int, str, str]:
    return SEVERITIES.index(finding.severity), line_of(finding), finding.name, finding.what
