"""Decide which findings a comment silences: ``# paceline: ignore NAME[, NAME]``.

After code the comment applies to its line, alone on a line to the next one. Before the first line
that is not a comment it applies to the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from paceline.errors import Finding

_COMMENT = re.compile(r"#\s*paceline:\s*ignore[ :=]+([\w,\s-]+)")


def ignored(source: str) -> tuple[frozenset[str], dict[int, frozenset[str]]]:
    """Return the finding names that are ignored in the whole file, and those by their lines."""
    everywhere: set[str] = set()
    by_line: dict[int, set[str]] = {}
    if "paceline:" not in source:
        return frozenset(), {}
    in_head = True
    for number, line in enumerate(source.split("\n"), 1):
        stripped = line.strip()
        match = _COMMENT.search(line)
        alone = match is not None and stripped.startswith("#")
        names = set(re.findall(r"[\w-]+", match[1])) if match else set()
        if alone and in_head:
            everywhere |= names
        elif match:
            by_line.setdefault(number + 1 if alone else number, set()).update(names)
        if stripped and not stripped.startswith("#"):
            in_head = False
    return frozenset(everywhere), {line: frozenset(names) for line, names in by_line.items()}


def unsuppressed(findings: Iterable[Finding], source: str) -> list[Finding]:
    """Return the findings that no comment of the file suppresses."""
    everywhere, by_line = ignored(source)
    return [
        finding
        for finding in findings
        if finding.name not in everywhere
        and finding.name not in by_line.get(line_of(finding), frozenset())
    ]


def line_of(finding: Finding) -> int:
    """Return the line of a finding located at ``file:line``, 0 if it has none."""
    match = re.search(r":(\d+)(?:\D|$)", finding.where)
    return int(match[1]) if match else 0
