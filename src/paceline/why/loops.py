"""Find out whether one rank has left a loop that another is still in, from the loops around their
lines. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.text.syntax import tree_of

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Nest:
    """A line and the loops around it."""

    file: str  # path of the file
    function: int  # first line of the function around the line, 0 outside of functions
    line: int  # number of the line
    loops: tuple[tuple[int, int], ...] = ()  # first and last line of each loop around the line


def nest(source: str, *, file: str, line: int) -> Nest | None:
    """Return the loops around a line, None if the text is not Python."""
    tree = tree_of(source)
    if tree is None:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (*_LOOPS, *_FUNCTIONS)) and _holds(node, line)
    ]
    function = max((node.lineno for node in around if isinstance(node, _FUNCTIONS)), default=0)
    loops = [
        (node.lineno, node.end_lineno or node.lineno) for node in around if isinstance(node, _LOOPS)
    ]
    return Nest(file, function, line, tuple(loop for loop in loops if loop[0] > function))


def left_loop(
    inside: Sequence[Nest],  # places of the user's frames in one stack, outermost first
    after: Sequence[Nest],  # those in the other. The innermost function that is in both counts
) -> tuple[str, int, int] | None:
    """Return file, first and last line of the innermost loop that one stack is in and another has
    left.
    """
    for inner in reversed(inside):
        for outer in reversed(after):
            if (inner.file, inner.function) == (outer.file, outer.function):
                passed = [loop for loop in inner.loops if outer.line > loop[1]]
                return (inner.file, *max(passed)) if passed else None
    return None


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
