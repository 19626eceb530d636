"""Scripts with marked places, ``# at: NAME``, that tests fill with code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping


def filled(text: str, pieces: Mapping[str, str], *, without: Collection[str] = ()) -> str:
    """Return a script with code at its places, as deep as each place is.

    Other places and the lines ``without`` are left out. Raises AssertionError if the script does
    not have one of the places.
    """
    left = {place: textwrap.dedent(piece).strip("\n") for place, piece in pieces.items()}
    lines = []
    for line in text.splitlines():
        place = re.match(r"( *)# at: (\w+)$", line)
        if place and place[2] in left:
            lines += textwrap.indent(left.pop(place[2]), place[1]).splitlines()
        elif not place and line.strip() not in without:
            lines.append(line)
    assert not left, f"the script has no place for {', '.join(left)}"
    return "\n".join(lines) + "\n"
