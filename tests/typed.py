"""Options as a test writes them down in a line: ``nnodes=2 module``."""

from __future__ import annotations

import shlex


def words(line: str) -> dict[str, str | bool]:
    """Return options by name, as the command line hands them on; one without a value is a flag."""
    pairs = (word.partition("=") for word in shlex.split(line))
    return {name: value if equals else True for name, equals, value in pairs}
