"""Find the ``if`` or decorator that lets only some ranks reach a line of a training script.

Such a block belongs to one of two sides: ``"one"`` (the selected ranks) or ``"rest"`` (all others).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.diagnose.lint.python.script import Function, Script, inside
from paceline.text.rank_conditions import (
    Sides,
    alone,
    decorator_scope,
    is_rank,
    leaves,
    sides,
    together,
)
from paceline.text.syntax import last

_MENTIONS = re.compile(
    r"rank|world_?size|num_replicas|process_index|gpu_?id|worker_?id|hostname|local_process", re.I
)


@dataclass(frozen=True)
class RankBlock:
    """A block that only some ranks enter."""

    side: str  # ``"one"`` or ``"rest"``
    scope: str  # as in `Sides`
    sure: bool  # as in `Sides`
    at: ast.AST  # the ``if``, or the decorated function
    condition: str  # the condition as text
    early: bool = False  # whether the other ranks have returned before this place


def rank_block(script: Script, node: ast.AST) -> RankBlock | None:
    """Return the innermost block around a node, in its function, that only some ranks enter."""
    return script.nearest("rank block", node, _enclosing)


def _enclosing(script: Script, parent: ast.AST, child: ast.AST) -> tuple[RankBlock | None] | None:
    """Return the block of one parent; a tuple ends the search."""
    block = _branch(script, parent, child) if isinstance(parent, ast.If) else None
    block = block or _after_return(script, parent, child)
    if block:
        return (block,)
    # Where a function is defined does not say who calls it.
    if isinstance(parent, Function):
        return (_decorated(parent),)
    return (None,) if isinstance(parent, ast.Lambda) else None


def _branch(script: Script, branch: ast.If, child: ast.AST) -> RankBlock | None:
    if child is branch.test:
        return None
    condition = _sides_of(script, branch)
    if condition is None:
        return None
    side = condition.false if child in branch.orelse else condition.true
    return (
        RankBlock(side, condition.scope, condition.sure, branch, _text(branch.test))
        if side
        else None
    )


def _sides_of(script: Script, branch: ast.If) -> Sides | None:
    return script.cached(("sides", branch), lambda: sides(script, branch.test))


def _after_return(script: Script, parent: ast.AST, child: ast.AST) -> RankBlock | None:
    """Return the block of the other ranks that begins after ``if rank == 0: return``."""
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(parent, block, None)
        if not isinstance(statements, list) or not any(
            statement is child for statement in statements
        ):
            continue
        for statement in statements:
            if statement is child:
                break
            # With an `else` the other ranks have had their branch, and it may leave as well.
            if not isinstance(statement, ast.If) or statement.orelse or not leaves(statement.body):
                continue
            condition = _sides_of(script, statement)
            if condition and condition.false:
                text = _text(statement.test)
                return RankBlock(
                    condition.false, condition.scope, condition.sure, statement, text, early=True
                )
    return None


def _decorated(function: Function) -> RankBlock | None:
    for decorator in function.decorator_list:
        name = last(decorator)
        scope = decorator_scope(name)
        if scope:
            return RankBlock("one", scope, sure=True, at=function, condition=f"@{name}")
    return None


def _text(test: ast.expr) -> str:
    try:
        text = ast.unparse(test)
    except (RecursionError, ValueError):
        return "the condition"
    return text if len(text) <= 80 else text[:77] + "..."


def called_by_some_only(script: Script, function: Function, depth: int = 0) -> bool:
    """Return whether only some ranks reach each call of a function; False without calls."""
    # A recursive call is made by the ranks that are inside already.
    calls = [
        call for call in script.calls_of(function.name) if script.function(call) is not function
    ]
    if not calls or depth > 3:
        return False
    return all(in_rank_block(script, call, depth + 1) for call in calls)


def in_rank_block(script: Script, node: ast.AST, depth: int = 0) -> bool:
    """Return whether only some ranks reach a node, or all calls of its function."""
    if rank_block(script, node):
        return True
    function = script.function(node)
    return function is not None and called_by_some_only(script, function, depth)


def runs_alone(script: Script, node: ast.AST) -> bool:
    """Return whether a node is in a branch for single-process runs."""
    return bool(script.nearest("alone", node, _branch_alone))


def _branch_alone(script: Script, parent: ast.AST, child: ast.AST) -> tuple[bool] | None:
    if isinstance(parent, ast.If) and child is not parent.test:
        in_body = any(child is statement for statement in parent.body)
        for_one_process = alone(parent.test) if in_body else together(parent.test)
        if for_one_process:
            return (True,)
    return None


def mentions_rank(script: Script, node: ast.AST) -> bool:
    """Return whether an expression depends on a rank or the number of ranks, also by a variable."""
    parts = list(inside(node, functions=True))
    variables: frozenset[str] = script.cached(
        "rank variables", lambda: frozenset(_rank_variables(script))
    )
    names = [last(part) for part in parts if isinstance(part, ast.Name | ast.Attribute)]
    texts = [
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return any(name in variables or _MENTIONS.search(name) for name in names) or any(
        re.search(r"\brank|RANK|PROCID", text) for text in texts
    )


def _rank_variables(script: Script) -> Iterator[str]:
    """Yield names such as ``r`` and ``w``, all of whose values are a rank or their number."""
    for name, values in script.values.items():
        parts = [value.value for value in values]
        if all(is_rank(script, part) or last(part) == "get_world_size" for part in parts):
            yield name
