"""What a text says: findings, likeliest first, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import EXIT_FAILED, EXIT_OK, Finding

FOLLOWED = "What followed from it:"


@dataclass(frozen=True)
class Answer:
    """What a text says.

    Attributes:
        findings: The likely cause first, then what follows from it or may also be meant.
        counts: How many lines speak of each finding.
        tail: The last lines of the first rank that failed, where the cause is not in the text.
        headings: What is said above findings that do not follow from the first one, by their names.
    """

    findings: tuple[Finding, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    tail: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """1 if the text shows a fault, 0 if it does not."""
        return EXIT_OK if self.findings[0].name == "no-error-in-log" else EXIT_FAILED

    def to_json(self) -> dict[str, Any]:
        """Return the findings as plain data, as ``--json`` prints them."""
        return {"findings": [finding.to_json() for finding in self.findings]}

    def render(self) -> str:
        """Return the answer as text: the likely cause in full, the rest folded."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        first, *rest = self.findings
        yield first.render()
        for heading in dict.fromkeys((FOLLOWED, *self.headings.values())):
            shown = [finding for finding in rest if self.headings.get(finding.name, FOLLOWED) == heading]
            if shown:
                yield heading
            yield from map(self._folded, shown)
        if self.tail:
            yield "last lines of it:"
            yield from (f"  {line}" for line in self.tail)

    def _folded(self, finding: Finding) -> str:
        times = self.counts.get(finding.name, 1)
        number = f" ({times} lines)" if times > 1 else ""
        where = f" ({finding.where})" if finding.where else ""
        return f"  {finding.name}{number}: {finding.what}{where}"
