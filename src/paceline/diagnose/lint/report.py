"""The report of ``paceline lint``: the findings of all files, as text or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.diagnose.lint.ignore import line_of
from paceline.diagnose.lint.program import Program
from paceline.errors import EXIT_MISUSE, SEVERITIES, Finding, status_of

if TYPE_CHECKING:
    from paceline.diagnose.lint.python.script import Script


@dataclass(frozen=True)
class CheckedFile:
    """The findings of one file."""

    name: str  # its path as typed
    findings: tuple[Finding, ...]  # its findings
    unreadable: bool = False  # True if it could not be read
    script: Script | None = None  # the index of a training script

    @cached_property
    def program(self) -> Program | None:
        """What a training script expects of its job, None for other files."""
        if self.script is None:
            return None
        from paceline.diagnose.lint.python.expectations import expectations

        return expectations(self.script)

    @property
    def sorted_findings(self) -> list[Finding]:
        """Its findings by severity and line, without duplicates."""
        return sorted({finding.render(): finding for finding in self.findings}.values(), key=_order)


@dataclass(frozen=True)
class LintReport:
    """The findings of all files."""

    files: tuple[CheckedFile, ...] = field(default=())  # the files in the order of the command line

    @property
    def findings(self) -> list[Finding]:
        """All findings by file, severity and line."""
        return [finding for file in self.files for finding in file.sorted_findings]

    @property
    def exit_status(self) -> int:
        """2 if a file could not be read, 1 if there is an error, else 0."""
        if any(file.unreadable for file in self.files):
            return EXIT_MISUSE
        return status_of(self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain data, as ``--json`` prints them."""
        return {"findings": [finding.to_json() for finding in self.findings]}

    def render(self) -> str:
        """Return the findings as text by file; files without one are only counted."""
        if len(self.files) == 1 and not self.findings:
            return f"{self.files[0].name}: nothing found"
        paragraphs = ["\n\n".join(_paragraphs(file)) for file in self.files if file.findings]
        return "\n\n".join([*paragraphs, self._summary()] if len(self.files) > 1 else paragraphs)

    def _summary(self) -> str:
        files = f"{len(self.files)} files"
        if not self.findings:
            return f"{files}: nothing found"
        clean = sum(1 for file in self.files if not file.findings)
        summary = f"{files}: {_counts(self.findings)}"
        return f"{summary}; {_number(clean, 'file')} without a finding" if clean else summary


def _paragraphs(file: CheckedFile) -> Iterator[str]:
    findings = file.sorted_findings
    yield f"{file.name}: {_counts(findings)}"
    for finding in findings:
        yield finding.render()


def _counts(findings: list[Finding]) -> str:
    numbers = Counter(finding.severity for finding in findings)
    return ", ".join(
        _number(numbers[severity], severity) for severity in SEVERITIES if numbers[severity]
    )


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _order(finding: Finding) -> tuple[int, int, str, str]:
    return SEVERITIES.index(finding.severity), line_of(finding), finding.name, finding.what
