"""Parse user scripts into syntax trees, and read names from them. Standard library only."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator


def tree_of(source: str) -> ast.Module | None:
    """Parse a script; return None if it is not Python or is nested too deeply.

    Warnings about the text, such as unknown escape sequences, are not shown: the author sees them
    when the script runs.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # ValueError: null bytes, up to Python 3.11
        return None


def dotted(node: ast.AST | None) -> str:
    """Return ``a.b.c`` for a chain of attributes that begins with a name, else an empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last(node: ast.AST | None) -> str:
    """Return the last part of a name, an attribute or a called function; else an empty string."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def constant(node: ast.AST | None) -> object:
    """Return the value of a literal (also ``-1``), or ``...`` for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        value = node.operand.value
        return -value if isinstance(value, int | float) else ...
    return ...


def words(node: ast.AST) -> Iterator[str]:
    """Yield every name, attribute and text constant within an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
