"""What became of each name of Lightning: the same here, other, or refused with what to write.

``lightning.txt`` has a line for each name; docs/reference/lightning.md is made from it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

SAME, OTHER, REFUSED = "same", "other", "refused"
FILE = Path(__file__).with_name("lightning.txt")


class Name(NamedTuple):
    """What became of a name.

    Attributes:
        kind: ``SAME``, ``OTHER`` or ``REFUSED``.
        text: What is other, or why it is refused; empty if it is the same.
        instead: What to write instead of a refused name; empty for others.
    """

    kind: str
    text: str = ""
    instead: str = ""


@cache
def tables() -> dict[str, dict[str, Name]]:
    """Return what became of each name, by the part of Lightning that it belongs to."""
    of_parts: dict[str, dict[str, Name]] = {}
    part: dict[str, Name] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            part = of_parts.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, *fields = (field.strip() for field in line.split(" | "))
            part[name] = Name(*fields)
    return of_parts


def refused(part: str, name: str) -> Name | None:
    """Return what became of a name if it is refused, else None."""
    entry = tables()[part].get(name)
    return entry if entry is not None and entry.kind == REFUSED else None


def missing_attribute(part: str, owner: str, name: str) -> AttributeError | None:
    """Return the error for an attribute of Lightning that is refused here; None for others.

    Args:
        part: Part of the table.
        owner: Name of the object that lacks it.
        name: Name of the attribute.
    """
    if name.startswith("_"):
        return None
    entry = refused(part, name)
    if entry is None:
        return None
    return AttributeError(f"{owner} has no {name}: {entry.text}; instead: {entry.instead}")
