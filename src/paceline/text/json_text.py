"""Write data as JSON, in the form in which every command prints it. Standard library only."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Any


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Print data on stdout, as ``json_text`` writes them."""
    print(json_text(value, indent=indent), flush=True)


def json_text(value: Any, *, indent: int | None = 1) -> str:
    """Return data as JSON. NaN and infinity, which JSON does not have, become null.

    A dataclass is written by its ``to_json``, or else as an object with its fields.
    """
    try:
        return json.dumps(value, indent=indent, default=_plain, allow_nan=False)
    except ValueError:
        python_json = json.dumps(value, default=_plain)
        finite = json.loads(python_json, parse_constant=lambda _: None)
        return json.dumps(finite, indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    return {field.name: getattr(value, field.name) for field in fields(value)}
