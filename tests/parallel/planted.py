"""The programs, and the bugs that are planted in them.

A bug changes one place of a program that is right. ``programs/`` holds scripts as users write them: none knows that
it is tested, and none imports paceline.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
PROGRAMS = FOLDER / "programs"
# Programs whose mesh is fixed: what is replaced so that one process can run them.
FIXED_MESHES = {"tp_dp": ("(2, 2)", "(1, 1)")}


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A change of a right program, and what a report must name.

    Attributes:
        name: Of the bug, unique within its program.
        find: What is replaced; occurs once.
        first: Names with which a right report may begin, ``*`` for any characters.
        source: A public report of this bug or of its like.
    """

    program: str
    name: str
    world: int
    find: str
    replace: str
    first: list[str]
    kind: str
    why: str
    difference: str
    arguments: tuple[str, ...] = ()
    source: str = ""

    @property
    def id(self) -> str:
        """The program and the name."""
        return f"{self.program}/{self.name}"

    def text(self) -> str:
        """The program with the bug."""
        right = program_text(self.program)
        if right.count(self.find) != 1:
            raise ValueError(f"{self.id}: find occurs {right.count(self.find)} times")
        return right.replace(self.find, self.replace)


@dataclass(frozen=True, kw_only=True)
class Right:
    """A right program with arguments, of which nothing may be said."""

    program: str
    name: str
    world: int
    why: str
    arguments: tuple[str, ...] = ()
    random: bool = False  # numbers differ by their nature: dropout masks of each rank

    @property
    def id(self) -> str:
        """The program and the name."""
        return f"{self.program}/{self.name}"


def read_bugs(file: str = "bugs.toml") -> list[Bug]:
    """All bugs of a file, in its order."""
    table = tomllib.loads((FOLDER / file).read_text(encoding="utf-8"))
    return [
        Bug(**{**entry, "arguments": tuple(entry.get("arguments", ()))}) for entry in table["bug"]
    ]


def read_right() -> list[Right]:
    """All right cases, in the order of the file."""
    table = tomllib.loads((FOLDER / "right.toml").read_text(encoding="utf-8"))
    return [
        Right(**{**entry, "arguments": tuple(entry.get("arguments", ()))})
        for entry in table["right"]
    ]


def program_text(name: str) -> str:
    """The right program."""
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")


def for_one_process(program: str, text: str) -> str:
    """The text, with a mesh of one process where the program has a fixed one."""
    if program not in FIXED_MESHES:
        return text
    fixed, one = FIXED_MESHES[program]
    assert text.count(fixed) == 1
    return text.replace(fixed, one)
