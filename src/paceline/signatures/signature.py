r"""What a line of a log stands for: signatures as data.

A signature is a text that a program prints, loosely matched, and what follows from it. Its tier says how directly it
speaks of the cause; the order of the tiers is the ranking (see ``tier``).

To add one:

1. Put a ``cause(...)`` into the file of its area in ``signatures``. Its name is one of ``paceline.codes``; if none
   fits, the name gets a code, a page in ``catalogue/texts`` and a folder in ``tests/codes`` first.
2. Its anchor is a piece of fixed text that is rare in healthy logs, three letters at least. A line without it is never
   looked at, so a common word costs time in every log.
3. Its pattern names what varies (``(?P<port>\d+)``) and holds no name, path, host or number of one particular run.
   ``what`` and ``fix`` use the groups; where a group may be missing, give a second template without it.
4. Its tier is CAUSE if the text can mean nothing else, COARSE if another line names the same fault more finely,
   HINTED if training may continue after it. A line that surviving ranks print is VICTIM, whatever it says.
5. What only several lines show is a ``note`` here and a rule in ``inference``.
6. Add the text as a program really prints it to ``tests/unit/explain``, and one that looks alike and is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from paceline.signatures.tier import Tier


@dataclass(frozen=True)
class Signature:
    """A text and what it stands for.

    Attributes:
        name: The fault; empty for a text that is only noted, for what several lines say together.
        anchor: Lower-case literals, one of which every matching line holds: the cheap test before the pattern.
        pattern: Regular expression, searched without regard to case in the line without colours.
        what: One sentence with ``{group}`` for what the pattern captured, or several of which the first is taken
            whose groups have all matched.
        fix: The same for what to do.
        why: Why it matters.
        tier: How directly it speaks of the cause.
        where: Template for the place.
        key: What a note is called; the name if empty.
        unless: Regular expression; a line that it matches is not meant.
        in_warning: It counts also where Python prints it as a warning.
    """

    name: str
    anchor: tuple[str, ...]
    pattern: str
    what: tuple[str, ...] = ()
    fix: tuple[str, ...] = ()
    why: str = ""
    tier: Tier = Tier.CAUSE
    where: str = ""
    key: str = ""
    unless: str = ""
    in_warning: bool = False

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.IGNORECASE)

    @cached_property
    def _excluded(self) -> re.Pattern[str] | None:
        return re.compile(self.unless, re.IGNORECASE) if self.unless else None

    def match(self, text: str, lower: str) -> Mapping[str, str] | None:
        """Return what the line holds of this text, None if it is another one.

        Args:
            text: The line, without colours.
            lower: The same in lower case.
        """
        for literal in self.anchor:
            if literal in lower:
                break
        else:
            return None
        found = self._compiled.search(text)
        if found is None or (self._excluded is not None and self._excluded.search(text)):
            return None
        return {key: value for key, value in found.groupdict().items() if value}


def fill(templates: tuple[str, ...], groups: Mapping[str, str]) -> str:
    """Return the first template whose groups are all there, filled in; empty if there is none."""
    for template in templates:
        try:
            return template.format_map(groups)
        except KeyError:
            continue
    return ""


def cause(
    name: str,
    anchor: str,
    pattern: str,
    *,
    what: str | tuple[str, ...],
    fix: str | tuple[str, ...],
    why: str = "",
    tier: Tier = Tier.CAUSE,
    where: str = "",
    key: str = "",
    unless: str = "",
    in_warning: bool = False,
) -> Signature:
    """Return a signature; its anchor literals are separated by ``|``."""
    return Signature(
        name,
        tuple(anchor.lower().split("|")),
        pattern,
        (what,) if isinstance(what, str) else what,
        (fix,) if isinstance(fix, str) else fix,
        why,
        tier,
        where,
        key or name,
        unless,
        in_warning,
    )


def note(key: str, anchor: str, pattern: str) -> Signature:
    """Return a signature that only notes what a line says."""
    return Signature("", tuple(anchor.lower().split("|")), pattern, key=key, tier=Tier.REMARK)
