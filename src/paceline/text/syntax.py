"""Parse scripts of users into syntax trees. Standard library only."""

from __future__ import annotations

import ast
import warnings


def tree_of(source: str) -> ast.Module | None:
    """Return the syntax tree of a script; None if it is not Python, or nested deeper than Python can read.

    Warnings about its text, such as unknown escape sequences, are not shown: its author sees them when it runs.

    Args:
        source: The text of the script.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes, in Python up to 3.11
        return None
