"""One variable with its value and the place that sets it."""

from __future__ import annotations

import re
from dataclasses import dataclass

SECRET = re.compile(r"PSK|TOKEN|SECRET|PASSW(OR)?D|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.I)
LONGEST = 120


@dataclass(frozen=True)
class Setting:
    """A variable as somebody set it.

    Attributes:
        name: Its name.
        value: Its value, or the text of a script that will be its value (``$PORT``).
        where: The place: a file and line, or the variable's own name.
    """

    name: str
    value: str
    where: str

    @property
    def text(self) -> str:
        """The value without blanks around it."""
        return self.value.strip()

    @property
    def is_plain(self) -> bool:
        """Whether the value is what the library will see: not empty, and nothing that a shell still replaces."""
        return bool(self.text) and not re.search(r"[$`]", self.value)

    @property
    def line(self) -> str:
        """The setting as evidence."""
        if SECRET.search(self.name):
            return f"{self.name}=..."
        shown = f"{self.name}={self.value}"
        return shown if len(shown) <= LONGEST else shown[: LONGEST - 3] + "..."


def number(text: str) -> int | None:
    """Return what C's ``strtoll(text, NULL, 0)`` reads if all of the text is a number, None otherwise."""
    match = re.fullmatch(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\s*", text)
    return (-1 if match[1] == "-" else 1) * _unsigned(match[2]) if match else None


def leading_number(text: str) -> int:
    """Return what C's ``strtoll(text, NULL, 0)`` makes of any text: the number that it begins with, or 0."""
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    return (-1 if match[1] == "-" else 1) * _unsigned(match[2]) if match else 0


def _unsigned(digits: str) -> int:
    if digits[:2] in ("0x", "0X"):
        return int(digits, 16)
    return int(digits, 8) if digits.startswith("0") and len(digits) > 1 else int(digits)
