"""Has one rank left a loop that another is still in: their lines in one file. Pure."""

from __future__ import annotations

import ast
import warnings

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def left_loop(source: str, *, inside: int, after: int) -> tuple[int, int] | None:
    """Return first and last line of the innermost loop that one line is in and the other comes after.

    Both lines have to be in the same function, and a loop around both does not count.

    Args:
        source: Text of the file.
        inside: A line, from 1.
        after: Another one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    if _function_of(tree, inside) is not _function_of(tree, after):
        return None
    loops = [node for node in ast.walk(tree) if isinstance(node, _LOOPS) and _holds(node, inside)]
    left = [(node.lineno, node.end_lineno or node.lineno) for node in loops if after > (node.end_lineno or 0)]
    return max(left, default=None)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _function_of(tree: ast.Module, line: int) -> ast.AST:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    around = [node for node in ast.walk(tree) if isinstance(node, functions) and _holds(node, line)]
    return max(around, key=lambda node: node.lineno, default=tree)
