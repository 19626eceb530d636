"""Scripts for ``paceline verify``: one right script of each framework, and what is replaced in it.

The mistakes were chosen, with what must be named, before verify named all of them; ten are from
public threads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

NEEDED = {"fabric": "lightning", "lightning": "lightning", "accelerate": "accelerate"}
# Scripts, and tables. Heads of a table: the framework, what is done, what must be named, and a public thread
# or options. Below: what is replaced in the right script, and by what.
PARTS = dict(
    part.split("\n", maxsplit=1)
    for part in Path(__file__).with_suffix(".txt").read_text()[2:].split("\n# ")
)
MISTAKES, OTHERS, RIGHT = (PARTS[name] for name in ("MISTAKES", "OTHERS", "RIGHT"))


@dataclass(frozen=True)
class Case:
    """A script, and what verify must say of it."""

    framework: str
    what: str
    name: str = ""
    rest: str = ""
    lines: tuple[str, ...] = ()

    @property
    def id(self):
        """The case in words."""
        return f"{self.framework}-{self.what}".replace(",", "").replace(" ", "-")

    @property
    def options(self):
        """Options of the command."""
        return [] if self.rest.startswith("https:") else self.rest.split()

    @property
    def text(self):
        """The script."""
        text = "\n".join((PARTS["data"], PARTS[self.framework], ""))
        signs = itertools.groupby(self.lines, key=lambda line: line[0])
        parts = ["\n".join(line[1:] for line in lines) for _, lines in signs]
        for old, new in zip(parts[::2], parts[1::2], strict=True):
            assert old in text, old
            text = text.replace(old, new)
        return text


def cases(table):
    """The cases of a table."""
    for block in table.strip().split("\n@ "):
        head, *lines = block.removeprefix("@ ").splitlines()
        yield Case(*(word.strip() for word in head.split("|")), lines=tuple(lines))
