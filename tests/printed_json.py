"""Read what a command prints with ``--json``, and compare it with the command's JSON Schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import fastjsonschema

from paceline.cli import json_schema


def read_json(command: str, text: str) -> Any:
    """Return what a command printed with ``--json``; fail if its schema does not describe it.

    Args:
        command: Words of the command without ``paceline``.
        text: What it printed on stdout.
    """
    return _validator(command)(json.loads(text))


@cache
def _validator(command: str) -> Any:
    return fastjsonschema.compile(json_schema.schema(command))
