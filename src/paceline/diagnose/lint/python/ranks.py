"""Which ranks come to a place: blocks behind ``if rank == 0`` in its many spellings.

Every partial block belongs to one of two sides, ``"one"`` (the ranks that were picked) and ``"rest"`` (all others).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from paceline.diagnose.lint.python.script import Function, Script, inside
from paceline.text.rank_conditions import Sides, alone, decorator_scope, leaves, sides, together
from paceline.text.syntax import last

_MENTIONS = re.compile(r"rank|world_?size|num_replicas|process_index|gpu_?id|worker_?id|hostname|local_process", re.I)


@dataclass(frozen=True)
class Partial:
    """A block that only some ranks enter.

    Attributes:
        side: ``"one"`` or ``"rest"``.
        scope: As in `Sides`.
        sure: As in `Sides`.
        at: The ``if``, or the decorated function.
        says: The condition as text.
        early: Whether the others left before by a return.
    """

    side: str
    scope: str
    sure: bool
    at: ast.AST
    says: str
    early: bool = False


def partial(script: Script, node: ast.AST) -> Partial | None:
    """Return the innermost block around a node that only some ranks enter, within its function."""
    answer: Partial | None = script.inherit("partial", node, _enclosing)
    return answer


def _enclosing(script: Script, parent: ast.AST, child: ast.AST) -> tuple[Partial | None] | None:
    """Look at one step upwards; a tuple ends the search."""
    found = _branch(script, parent, child) if isinstance(parent, ast.If) else None
    found = found or _after_return(script, parent, child)
    if found:
        return (found,)
    if isinstance(parent, Function):
        return (_decorated(parent),)
    return (None,) if isinstance(parent, ast.Lambda) else None


def _branch(script: Script, branch: ast.If, child: ast.AST) -> Partial | None:
    if child is branch.test:
        return None
    told = _sides_of(script, branch)
    if told is None:
        return None
    side = told.false if child in branch.orelse else told.true
    return Partial(side, told.scope, told.sure, branch, _text(branch.test)) if side else None


def _sides_of(script: Script, branch: ast.If) -> Sides | None:
    return script.ask(("sides", branch), lambda: sides(script, branch.test))


def _after_return(script: Script, parent: ast.AST, child: ast.AST) -> Partial | None:
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(parent, block, None)
        if not isinstance(statements, list):
            continue
        if not any(statement is child for statement in statements):
            continue
        for statement in statements:
            if statement is child:
                break
            if isinstance(statement, ast.If) and not statement.orelse and leaves(statement.body):
                told = _sides_of(script, statement)
                if told and told.false:
                    return Partial(told.false, told.scope, told.sure, statement, _text(statement.test), early=True)
    return None


def _decorated(function: Function) -> Partial | None:
    for decorator in function.decorator_list:
        name = last(decorator)
        scope = decorator_scope(name)
        if scope:
            return Partial("one", scope, sure=True, at=function, says=f"@{name}")
    return None


def _text(test: ast.expr) -> str:
    try:
        text = ast.unparse(test)
    except (RecursionError, ValueError):
        return "the condition"
    return text if len(text) <= 80 else text[:77] + "..."


def called_by_some_only(script: Script, function: Function, depth: int = 0) -> bool:
    """Say whether every call of a function within the file stands in a partial block; false if there is none."""
    calls = [call for call in script.calls_of(function.name) if script.function(call) is not function]
    if not calls or depth > 3:
        return False
    return all(is_partial(script, call, depth + 1) for call in calls)


def is_partial(script: Script, node: ast.AST, depth: int = 0) -> bool:
    """Say whether only some ranks come to a node, by a block around it or by all calls of its function."""
    if partial(script, node):
        return True
    function = script.function(node)
    return function is not None and called_by_some_only(script, function, depth)


def runs_alone(script: Script, node: ast.AST) -> bool:
    """Say whether a node stands in a branch for runs of one process."""
    return bool(script.inherit("alone", node, _branch_alone))


def _branch_alone(script: Script, parent: ast.AST, child: ast.AST) -> tuple[bool] | None:
    if isinstance(parent, ast.If) and child is not parent.test:
        in_body = any(child is statement for statement in parent.body)
        if (in_body and alone(parent.test)) or (not in_body and together(parent.test)):
            return (True,)
    return None


def mentions_rank(node: ast.AST) -> bool:
    """Say whether an expression depends on a rank or the number of ranks by its words."""
    parts = list(inside(node, functions=True))
    names = [last(part) for part in parts if isinstance(part, ast.Name | ast.Attribute)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(map(_MENTIONS.search, names)) or any(re.search(r"\brank|RANK|PROCID", text) for text in texts)
