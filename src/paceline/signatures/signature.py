r"""Signatures: the text of a log line, and the fault that it means, as data.

A signature is a text that a program prints, loosely matched, and the finding that follows from it.
Its tier says how directly it points to the cause; the order of the tiers is the ranking (see
``tier``).

To add a signature:

1. Put a table into the file of its area in ``libraries``; its fields are those of ``Signature``.
   Its name is one of ``paceline.codes``. If none fits, first give the new name a code, a page in
   ``catalogue/texts`` and a folder in ``tests/codes``.
2. The anchor is a fixed piece of text that is rare in healthy logs, with at least three letters.
   Lines without it are never examined, so a common word costs time in every log.
3. The pattern names the variable parts (``(?P<port>\d+)``) and contains no name, path, host or
   number of a particular run. ``what`` and ``fix`` use the groups. If a group may be missing, give
   a second template without it.
4. The tier is CAUSE if the text can mean nothing else, COARSE if another line names the same fault
   more precisely, HINTED if training may continue after it. A line that surviving ranks print is
   VICTIM, regardless of its words.
5. For a fault that only several lines show, add a table without a name, which only records a
   line, and a rule in ``inference``.
6. Add the line as the program prints it, and where it stands in its source, to
   ``tests/unit/signatures/printed.toml``.
7. Add the text as a program really prints it to ``tests/unit/diagnose/explain``, and a similar
   harmless one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from paceline.signatures.tier import Tier


@dataclass(frozen=True)
class Signature:
    """A text and the fault that it means."""

    name: str  # name of the finding; empty for a note, which rules over several lines use
    # lower-case literals; a matching line contains one. They are tested before the pattern.
    anchor: tuple[str, ...]
    pattern: str  # regular expression, searched without regard to case in the line without colours
    # templates for one sentence, with ``{group}`` for groups of the pattern. The first template
    # whose groups all matched is used.
    what: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()  # templates for the fix, used likewise
    why: str = ""  # why it matters
    tier: Tier = Tier.CAUSE  # how directly the text points to the cause
    where: str = ""  # template for the place
    key: str = ""  # identifier of a note; the name if empty
    unless: str = ""  # regular expression that excludes a line
    in_warning: bool = False  # whether the signature also counts in a Python warning

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def _excluded(self) -> re.Pattern[str] | None:
        return re.compile(self.unless, re.IGNORECASE) if self.unless else None

    def match(
        self,
        text: str,  # the line without colours
        lower: str,  # ``text`` in lower case
    ) -> Mapping[str, str] | None:
        """Return the groups that matched in a line; None if the line does not match."""
        for literal in self.anchor:
            if literal in lower:
                break
        else:
            return None
        match = self._compiled.search(text)
        if match is None or (self._excluded is not None and self._excluded.search(text)):
            return None
        return {name: value for name, value in match.groupdict().items() if value}


def fill(templates: tuple[str, ...], groups: Mapping[str, str]) -> str:
    """Fill in the first template whose groups are all present; empty if there is none."""
    for template in templates:
        try:
            return template.format_map(groups)
        except KeyError:
            continue
    return ""
