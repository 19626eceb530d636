"""What became of each name of Lightning: the same here, other, or refused with its text.

``lightning.txt`` has a line for each name; docs/reference/lightning.md is made from it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

SAME, OTHER, REFUSED = "same", "other", "refused"
FILE = Path(__file__).with_name("lightning.txt")


class Name(NamedTuple):
    """What became of a name."""

    kind: str  # ``SAME``, ``OTHER`` or ``REFUSED``
    text: str = ""  # what is other, or why it is refused; empty if it is the same
    instead: str = ""  # what to write instead of a refused name; empty for others


@cache
def tables(file: Path = FILE) -> dict[str, dict[str, Name]]:
    """Return what became of each name, by the part of Lightning that it belongs to.

    A name without fields is ``SAME``.
    """
    of_parts: dict[str, dict[str, Name]] = {}
    part: dict[str, Name] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            part = of_parts.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, *fields = (field.strip() for field in line.split(" | "))
            part[name] = Name(*fields or [SAME])
    return of_parts


def refused(part: str, name: str) -> Name | None:
    """Return what became of a name if it is refused, else None."""
    entry = tables()[part].get(name)
    return entry if entry is not None and entry.kind == REFUSED else None


def refuse(module: str, name: str) -> NoReturn:
    """Refuse a name that a module lacks; what Lightning has there is told what to write instead.

    Raises:
        ImportError: Lightning has it. An AttributeError would become an ImportError without a text.
        AttributeError: It is another name.
    """
    parts = [tables()[part] for part in ("package", "callbacks", "loggers", "imports")]
    known = {key: what for part in parts for key, what in part.items() if what.instead}
    entry = known.get(name) or known.get(module.rpartition(".")[2])
    if entry is None or name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise ImportError(f"{module} has no {name}: {entry.text}; instead: {entry.instead}", name=name)


def missing_attribute(part: str, owner: str, name: str) -> AttributeError | None:
    """Return the error for an attribute of Lightning that is refused here; None for others."""
    if name.startswith("_"):
        return None
    entry = refused(part, name)
    if entry is None:
        return None
    return AttributeError(f"{owner} has no {name}: {entry.text}; instead: {entry.instead}")
