"""Describe one variable for ``explain``: who reads it, what it does, its default and its values."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.diagnose.variables.families import closest_real, distance, is_closed
from paceline.diagnose.variables.folklore import FOLKLORE, Folklore, folklore
from paceline.diagnose.variables.lists import ALGORITHMS, PROTOCOLS, SHOWN, SUBSYSTEMS
from paceline.diagnose.variables.renamed import LIBRARIES, RENAMED, Renamed
from paceline.diagnose.variables.table import KnownVariable, known, newest_version
from paceline.text.wording import wrapped

COLUMNS = 80
VALUES_OF_KIND = {
    **{"level": "LOC, NVL, PIX, PXB, PHB, SYS", "size": "bytes"},
    **dict.fromkeys(("flag", "bool", "zero-one"), "0, 1"),
    **{"network": "IB, Socket or a plug-in's name", "interfaces": "prefixes, `=exact`, `^not`"},
    **{
        "cards": "cards, `=exact`, `^not`",
        "exact-interfaces": "whole names",
        "allocator": "`option:value,...`",
    },
    "algorithms": ", ".join(SHOWN[name] for name in ALGORITHMS),
    "protocols": ", ".join(SHOWN[name] for name in PROTOCOLS),
    "subsystems": ", ".join(sorted(SUBSYSTEMS)),
}


@dataclass(frozen=True)
class Description:
    """What ``paceline explain NAME`` prints about a variable."""

    name: str  # the variable
    is_read: bool  # whether the newest version of a library reads it
    what: str  # one sentence
    # further facts, each with its name: ``("default", "4194304")``
    facts: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the description as data for a program."""
        return {"name": self.name, "read": self.is_read, "what": self.what, **dict(self.facts)}

    def render(self) -> str:
        """Return the description as plain text for a terminal."""
        lines = [self.name, *_filled(self.what)]
        for name, fact in self.facts:
            lines += _filled(f"{name}: {fact}")
        return "\n".join(lines)


def describe(name: str) -> Description | None:
    """Describe a variable; None if the name is neither that of a known variable nor like one."""
    # Old names are among the known ones too, and what matters of them is the name now.
    if name in RENAMED:
        return _renamed(name, RENAMED[name])
    if name in known():
        return _read(known()[name])
    story = folklore(name)
    if story is not None:
        return _folklore(name, story)
    return _unknown(name) if is_closed(name) else None


def valid_values(variable: KnownVariable) -> str:
    """Return the valid values of a variable as text, empty if any value may be right."""
    if variable.values:
        return ", ".join(f"`{value}`" for value in variable.values)
    if variable.low is not None and variable.high is not None:
        return f"{variable.low} to {variable.high}"
    smallest = f"from {variable.low}" if variable.low is not None else ""
    return VALUES_OF_KIND.get(variable.kind, smallest)


def _read(variable: KnownVariable) -> Description:
    library = LIBRARIES.get(variable.library, variable.library)
    what = variable.meaning or f"{library} reads it; it is rarely set manually"
    if variable.until:
        return Description(
            variable.name, False, f"{library} up to {variable.until} read it: {what}"
        )
    facts = {
        "read by": f"{library} since {variable.since}" if variable.since else library,
        "default": variable.default,
        "values": valid_values(variable).replace("`", ""),
    }
    present = tuple((name, fact) for name, fact in facts.items() if fact)
    return Description(variable.name, True, what, present)


def _renamed(name: str, change: Renamed) -> Description:
    library = LIBRARIES[change.library]
    what = f"it is called {change.new} since {library} {change.since}"
    state = "still read" if change.works else "not read any more, so it has no effect"
    facts = [("this name", state), ("more", f"paceline explain {change.new}")]
    if change.remark:
        facts.insert(1, ("other changes", change.remark))
    return Description(name, change.works, what, tuple(facts))


def _folklore(name: str, story: Folklore) -> Description:
    facts = (("why", story.why), ("instead", story.instead))
    return Description(name, False, "no library reads it", facts)


def _unknown(name: str) -> Description:
    near = closest_real(name)
    if near:
        return Description(
            name,
            False,
            f"no library reads it; there is {near}",
            (("more", f"paceline explain {near}"),),
        )
    named = _misspelt_folklore(name)
    if named:
        what = f"no library reads it, nor {named}"
        return Description(name, False, what, (("more", f"paceline explain {named}"),))
    versions = f"NCCL up to {newest_version('nccl')} and torch up to {newest_version('torch')}"
    return Description(name, False, f"not read by {versions}; a plug-in may read it")


def _misspelt_folklore(name: str) -> str:
    """Return the name that is often set in vain and differs by one letter, empty without one."""
    names = (real for story in FOLKLORE for real in story.names)
    return next((real for real in names if distance(name, real, 1) <= 1), "")


def _filled(text: str) -> list[str]:
    return wrapped(text, COLUMNS, first="  ", rest="    ")
