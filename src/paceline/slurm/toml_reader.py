"""Parse TOML files that users write, and find the line of a key for messages. Pure."""

from __future__ import annotations

import re
from typing import Any

from paceline.errors import UsageError
from paceline.text import toml


def parse(
    text: str,
    *,
    path: str,  # path of the file, for messages
    name: str,  # name of the finding
    kind: str,  # what the file is, such as ``"profile"``
) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises UsageError if the text is not TOML.
    """
    try:
        whole: dict[str, Any] = toml.loads(text)
        return whole
    except toml.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column \d+\)", str(error))
        what = re.sub(r" *\(at .*\)", "", str(error))
        number = int(place[1]) if place else text.count("\n") + 1
        lines = text.splitlines()
        faulty_line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        # ``partition = gpu``: the usual mistake of those who know ini files and shells.
        quotes = re.fullmatch(r"([\w-]+)\s*=\s*([^\"'\[{#]+?)\s*(#.*)?", faulty_line)
        raise UsageError.of(
            name,
            f"the {kind} is not TOML: {what[:1].lower()}{what[1:]}",
            where=f"{path}:{number}",
            evidence=(faulty_line,) if faulty_line else (),
            fix=(
                f'{quotes[1]} = "{quotes[2]}"'
                if quotes
                else f"correct line {number}; texts need quotes"
            ),
        ) from None


def line_of(text: str, section: str, key: str) -> int:
    """Return the line of a key in its section, else the line of the section, else 0."""
    inside, begins = not section, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*\"?([\w.-]+)\"?\s*\]+", line):
            name = header[1]
            if not section and name == key:
                return number
            inside = name in (section, f"{section}.{key}")
            if name == f"{section}.{key}":
                return number
            begins = number if name == section else begins
        elif key and inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
            return number
    return begins
