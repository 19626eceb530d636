"""A setting: one variable with its value and the place that sets it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.text.secret_texts import WORDS

SECRET = re.compile(WORDS, re.I)
LONGEST = 120


@dataclass(frozen=True)
class Setting:
    """A variable with a value."""

    name: str  # its name
    value: str  # its value, or the text of a script that becomes its value (``$PORT``)
    where: str  # the place: a file and line, or the variable's own name

    @property
    def text(self) -> str:
        """The value without blanks around it."""
        return self.value.strip()

    @property
    def is_plain(self) -> bool:
        """Whether the library sees exactly this value: it is not empty, and no shell expands it."""
        return bool(self.text) and not re.search(r"[$`]", self.value)

    @property
    def line(self) -> str:
        """The setting as evidence."""
        if SECRET.search(self.name):
            return f"{self.name}=..."
        line = f"{self.name}={self.value}"
        return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def number(text: str) -> int | None:
    """Return what C's ``strtoll(text, NULL, 0)`` reads if all of the text is a number, None
    otherwise.
    """
    match = re.fullmatch(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\s*", text)
    return _signed(match) if match else None


def leading_number(text: str) -> int:
    """Return what C's ``strtoll(text, NULL, 0)`` reads from any text: the number at its start, or
    0.
    """
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    return _signed(match) if match else 0


def _signed(match: re.Match[str]) -> int:
    digits, base = match[2].lower(), 10
    if digits.startswith("0"):  # C's base 0: 0x10 is sixteen and 010 is eight
        base = 16 if digits.startswith("0x") else 8
    value = int(digits, base)
    return -value if match[1] == "-" else value
