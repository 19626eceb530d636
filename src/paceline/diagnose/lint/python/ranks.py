"""Find the ``if`` or decorator that lets only some ranks reach a line of a training script.

Such a block belongs to one of two sides: ``"one"`` (the selected ranks) or ``"rest"`` (all others).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import islice

from paceline.diagnose.lint.python.script import Function, Script, arguments_of
from paceline.text.rank_conditions import alone, decorator_scope, leaves, sides, together
from paceline.text.syntax import last

_MENTIONS = re.compile(
    r"rank|world_?size|num_replicas|process_index|gpu_?id|worker_?id|hostname|local_process", re.I
)
_IN_TEXT = re.compile(r"\brank|RANK|PROCID")
# Deeper nesting is not handwritten.
_DEEPEST = 200


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
    child = node
    for parent in islice(script.up(node), _DEEPEST):
        block = _branch(script, parent, child) if isinstance(parent, ast.If) else None
        block = block or _after_return(script, parent, child)
        if block:
            return block
        # Where a function is defined does not say who calls it.
        if isinstance(parent, Function):
            return _decorated(parent)
        if isinstance(parent, ast.Lambda):
            return None
        child = parent
    return None


def _branch(script: Script, branch: ast.If, child: ast.AST) -> RankBlock | None:
    if child is branch.test:
        return None
    condition = sides(script, branch.test)
    if condition is None:
        return None
    side = condition.false if child in branch.orelse else condition.true
    if not side:
        return None
    return RankBlock(side, condition.scope, condition.sure, branch, _text(branch.test))


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
            condition = sides(script, statement.test)
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
    child = node
    for parent in islice(script.up(node), _DEEPEST):
        if isinstance(parent, ast.If) and child is not parent.test:
            in_body = any(child is statement for statement in parent.body)
            if alone(parent.test) if in_body else together(parent.test):
                return True
        child = parent
    return False


def is_in_every_rank(script: Script, node: ast.AST) -> bool:
    """Return whether a node runs in all ranks, as far as the file shows."""
    if runs_alone(script, node) or in_rank_block(script, node):
        return False
    workers = started(script)
    function = script.function(node)
    # What the process that starts the ranks does is done once.
    return not workers or (function is not None and function.name in workers)


def started(script: Script) -> set[str]:
    """Return the functions that run in processes which the script starts, by their names."""
    starts = [*script.calls_of("spawn"), *script.calls_of("start_processes")]
    starts += script.calls_of("Process")
    starts = [call for call in starts if "multiprocessing" in script.full(call)]
    if not starts:
        return set()
    starters = {function.name for call in starts if (function := script.function(call))}
    # A function that starts another one may get it from its caller.
    calls = starts + [call for name in starters for call in script.calls_of(name)]
    names = [last(value) for call in calls for value in arguments_of(call)]
    reached: set[str] = set()
    while names:
        name = names.pop()
        bodies: list[ast.AST] = [*script.functions.get(name, [])]
        bodies += [script.classes[name]] if name in script.classes else []
        if name in reached or not bodies:
            continue
        reached.add(name)
        # A mention is enough: functions are passed on as callbacks.
        for node in [node for body in bodies for node in ast.walk(body)]:
            names.append(node.name if isinstance(node, Function) else last(node))
    return reached


def depends_on_rank(script: Script, node: ast.expr) -> bool:
    """Return whether an expression, or one that its names stand for, mentions ranks."""
    parts = [part for origin in script.origins(node) for part in ast.walk(origin)]
    return any(_mentions_rank(part) for part in parts)


def _mentions_rank(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and _IN_TEXT.search(node.value) is not None
    return _MENTIONS.search(last(node)) is not None
