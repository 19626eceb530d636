"""Find the ``if`` that lets only some ranks reach a line of a script. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from paceline.text.rank_conditions import TreeNames, chooses, decorator_scope, leaves_function
from paceline.text.syntax import tree_of, words

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# A longer text is generated: parsing 350 kB took a second, and 60 MB for the tree.
_MOST_CHARACTERS = 500_000


def guard_of(
    source: str,  # text of the file
    line: int,  # number of the line, from 1
) -> tuple[int, str] | None:
    """Return what lets only some ranks reach a line: its line number and its text, or None."""
    parsed = _parse(source) if len(source) <= _MOST_CHARACTERS else None
    if parsed is None:
        return None
    names, body = parsed
    return next(_guards(names, body, line), None)


@lru_cache(maxsize=8)
def _parse(source: str) -> tuple[TreeNames, list[ast.stmt]] | None:
    """Parse a text once: all frames of a stack, all ranks and all looks ask for the same few."""
    tree = tree_of(source)
    return None if tree is None else (TreeNames.of(tree), tree.body)


def _guards(names: TreeNames, body: list[ast.stmt], line: int) -> Iterator[tuple[int, str]]:
    """Yield the guards of a line in a block and the blocks inside, innermost first."""
    for place, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        for block in _blocks(statement):
            yield from _guards(names, block, line)
        yield from _condition_around(names, statement, line)
        if isinstance(statement, _FUNCTIONS):
            yield from _rank_decorators(statement.decorator_list)
        yield from _early_exits(names, body[:place])


def _condition_around(
    names: TreeNames, statement: ast.stmt, line: int
) -> Iterator[tuple[int, str]]:
    """Yield a statement if it is an ``if`` or ``while`` that chooses ranks for a line inside."""
    if not isinstance(statement, ast.If | ast.While) or not _is_inside(statement, line):
        return
    if chooses(names, statement.test):
        word = "if" if isinstance(statement, ast.If) else "while"
        in_else = statement.orelse and line >= statement.orelse[0].lineno
        prefix = "else of " if in_else else ""
        yield statement.lineno, f"{prefix}{word} {ast.unparse(statement.test)}:"


def _rank_decorators(decorators: list[ast.expr]) -> Iterator[tuple[int, str]]:
    """Yield the decorators by which only some ranks run a function."""
    for decorator in decorators:
        if any(map(decorator_scope, words(decorator))):
            yield decorator.lineno, f"@{ast.unparse(decorator)}"


def _early_exits(names: TreeNames, earlier: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield the statements before a line by which some ranks have left its block."""
    for statement in earlier:
        if isinstance(statement, ast.If) and _excludes(names, statement):
            test = ast.unparse(statement.test)
            yield statement.lineno, f"if {test}: {ast.unparse(statement.body[-1])}"


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _is_inside(statement: ast.If | ast.While, line: int) -> bool:
    """Return whether a line belongs to the block, and not to the test, of a statement.

    A line with both counts as the block's.
    """
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
