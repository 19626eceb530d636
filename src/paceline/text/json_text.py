"""Write plain data as JSON, in the form in which every command prints it. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Print plain data on stdout, as ``json_text`` writes it."""
    print(json_text(value, indent=indent), flush=True)


def json_text(value: Any, *, indent: int | None = 1) -> str:
    """Return plain data as JSON. NaN and infinity, which JSON does not have, become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return plain data with None in place of each number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
