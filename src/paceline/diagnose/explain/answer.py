"""The result of ``explain``: findings, likeliest first, and how they are rendered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import EXIT_FAILED, EXIT_OK, Finding

FOLLOWED = "What followed from it:"
ALSO = "Also in the text:"


def noticed_before(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the headings for warnings of paceline's: the run continued, so none is a result."""
    return {finding.name: ALSO for finding in findings if finding.severity != "error"}


@dataclass(frozen=True)
class Answer:
    """The explanation of a text."""

    # the likely cause, followed by its consequences and by alternatives
    findings: tuple[Finding, ...]
    counts: Mapping[str, int] = field(default_factory=dict)  # number of lines for each finding name
    # the last lines of the first rank that failed, if the text does not show the cause
    tail: tuple[str, ...] = ()
    # by finding name, the heading above findings that do not follow from the first
    headings: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """1 if the text shows a fault, 0 if it does not."""
        return EXIT_OK if self.findings[0].severity == "hint" else EXIT_FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the findings as the dictionary that ``--json`` prints."""
        return {"findings": [finding.to_json() for finding in self.findings]}

    def render(self) -> str:
        """Return the explanation as text: the likely cause in full, the rest in short."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        first, *rest = self.findings
        yield first.render()
        for heading in dict.fromkeys((FOLLOWED, *self.headings.values())):
            section = [
                finding for finding in rest if self.headings.get(finding.name, FOLLOWED) == heading
            ]
            if section:
                yield heading
            yield from map(self._folded, section)
        if self.tail:
            yield "last lines of it:"
            yield from (f"  {line}" for line in self.tail)

    def _folded(self, finding: Finding) -> str:
        times = self.counts.get(finding.name, 1)
        number = f" ({times} lines)" if times > 1 else ""
        where = f" ({finding.where})" if finding.where else ""
        return f"  {finding.name}{number}: {finding.what}{where}"
