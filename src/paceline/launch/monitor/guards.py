"""Is a line of a script reached by some ranks only: the ``if`` around it that chooses ranks. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.text.syntax import tree_of

# What a test that chooses ranks speaks of: rank == 0, is_main_process(), trainer.is_global_zero, os.environ["RANK"] ...
# Whole words only: lora_rank, ranking or num_ranks are the same on all ranks.
_CHOOSES = re.compile(
    r"((get|global|local|node|my|this|dp|ddp|data_parallel|proc|process|world)_)*_?rank(_zero|_id)?"
    r"|is_(main|master|root|chief|global_zero|local_zero|rank_zero|rank0)(_\w+)?|(main|local_main)_process|process_index",
    re.I,
)
_DECORATORS = re.compile(r"\w*rank_zero\w*|on_main_process|on_local_main_process", re.I)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def guard_of(source: str, line: int) -> tuple[int, str] | None:
    """Return the line and text of what lets only some ranks reach a line, such as ``if rank == 0:``; None if nothing.

    Args:
        source: Text of the file.
        line: Number of the line, from 1.
    """
    tree = tree_of(source)
    return next(_guards(tree.body, line), None) if tree is not None else None


def _guards(body: list[ast.stmt], line: int) -> Iterator[tuple[int, str]]:
    """Yield the guards of a line, innermost first, of the statements of one block and those inside."""
    for place, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        for block in _blocks(statement):
            yield from _guards(block, line)
        if isinstance(statement, ast.If | ast.While) and _is_inside(statement, line) and _chooses(statement.test):
            word = "if" if isinstance(statement, ast.If) else "while"
            other = statement.orelse and line >= statement.orelse[0].lineno
            yield statement.lineno, f"{'else of ' if other else ''}{word} {ast.unparse(statement.test)}:"
        if isinstance(statement, _FUNCTIONS):
            yield from ((each.lineno, f"@{ast.unparse(each)}") for each in statement.decorator_list if _decorates(each))
        yield from (
            (each.lineno, f"if {ast.unparse(each.test)}: {ast.unparse(each.body[-1])}")
            for each in body[:place]
            if isinstance(each, ast.If) and _leaves(each) and _chooses(each.test)
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


def _leaves(statement: ast.If) -> bool:
    """The block ends the function or the round of the loop, so what follows it is for the other ranks.

    With ``and`` in the test it is for some of these too.
    """
    one_way = isinstance(statement.body[-1], ast.Return | ast.Continue | ast.Break) and not statement.orelse
    both = isinstance(statement.test, ast.BoolOp) and isinstance(statement.test.op, ast.And)
    return one_way and not both


def _chooses(test: ast.expr) -> bool:
    """Whether ranks get different answers: a comparison with -1 or None asks if there are several, not which."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and any(map(_is_none_or_negative, node.comparators)):
            return False
    return any(_CHOOSES.fullmatch(name) for name in _names(test))


def _is_none_or_negative(node: ast.expr) -> bool:
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return negative or (isinstance(node, ast.Constant) and node.value is None)


def _decorates(decorator: ast.expr) -> bool:
    return any(_DECORATORS.fullmatch(name) for name in _names(decorator))


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value  # os.environ["RANK"]
