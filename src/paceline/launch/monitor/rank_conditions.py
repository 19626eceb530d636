"""Is a line of a script reached by some ranks only: the ``if`` around it that chooses ranks.
Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.text.rank_conditions import TreeNames, chooses, decorator_scope, leaves_function
from paceline.text.syntax import tree_of, words

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def guard_of(source: str, line: int) -> tuple[int, str] | None:
    """Return the line and text of what lets only some ranks reach a line, such as ``if rank ==
    0:``; None if nothing.

    Args:
        source: Text of the file.
        line: Number of the line, from 1.
    """
    tree = tree_of(source)
    if tree is None:
        return None
    return next(_guards(TreeNames.of(tree), tree.body, line), None)


def _guards(names: TreeNames, body: list[ast.stmt], line: int) -> Iterator[tuple[int, str]]:
    """Yield the guards of a line, innermost first, of the statements of one block and those
    inside.
    """
    for place, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        for block in _blocks(statement):
            yield from _guards(names, block, line)
        if (
            isinstance(statement, ast.If | ast.While)
            and _is_inside(statement, line)
            and chooses(names, statement.test)
        ):
            word = "if" if isinstance(statement, ast.If) else "while"
            other = statement.orelse and line >= statement.orelse[0].lineno
            yield (
                statement.lineno,
                f"{'else of ' if other else ''}{word} {ast.unparse(statement.test)}:",
            )
        if isinstance(statement, _FUNCTIONS):
            yield from (
                (each.lineno, f"@{ast.unparse(each)}")
                for each in statement.decorator_list
                if _decorates(each)
            )
        yield from (
            (each.lineno, f"if {ast.unparse(each.test)}: {ast.unparse(each.body[-1])}")
            for each in body[:place]
            if isinstance(each, ast.If) and _excludes(names, each)
        )


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _is_inside(statement: ast.If | ast.While, line: int) -> bool:
    """The line is of the block, not of the test; where both are on it, the block is meant."""
    return line > (statement.test.end_lineno or 0) or line == statement.body[0].lineno


def _excludes(names: TreeNames, statement: ast.If) -> bool:
    """Return whether the block ends the function or the iteration of the loop, so what follows is
    for the other ranks.

    With ``and`` in the test it is for some of these too. A rank that ends its program there is not
    meant: that it has ended says more than the condition.
    """
    is_and = isinstance(statement.test, ast.BoolOp) and isinstance(statement.test.op, ast.And)
    is_one_way = leaves_function(statement.body) and not statement.orelse
    return is_one_way and not is_and and chooses(names, statement.test)


def _decorates(decorator: ast.expr) -> bool:
    return any(map(decorator_scope, words(decorator)))
