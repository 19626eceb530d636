"""Print the result of a command: text for a terminal, or JSON for a program."""

from __future__ import annotations

import json
from typing import Any

from paceline.text import terminal


def show(result: Any, as_json: bool) -> None:
    """Print the result of a command as text or JSON: a page, an answer, a report."""
    if as_json:
        print_json(result.to_json())
    else:
        terminal.show(result.render())


def print_json(value: Any) -> None:
    """Print plain data as JSON."""
    print(json.dumps(value, indent=1))
