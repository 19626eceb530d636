"""Read numbers from variables. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import option_invalid


def whole(environ: Mapping[str, str], name: str) -> int:
    """Return the value of a variable that is set as a whole number from 0 on.

    Raises UsageError if it is something else.
    """
    text = environ[name].strip()
    if not text.isdecimal():
        raise option_invalid(
            f"{name}={environ[name]} is not a whole number",
            where=f"environment variable {name}",
            fix=f"unset {name}, if nothing but this shell has set it",
        )
    return int(text)
