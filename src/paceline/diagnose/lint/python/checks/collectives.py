"""Check collective calls: every rank must make them, but part of the ranks reach some places."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python.collective_calls import Collective, as_collective
from paceline.diagnose.lint.python.objects import kinds, makes, names_of
from paceline.diagnose.lint.python.ranks import RankBlock, rank_block, runs_alone
from paceline.diagnose.lint.python.script import Function, Script, inside, keyword, words_of
from paceline.errors import Finding
from paceline.text.rank_conditions import alone, leaves, sides, together
from paceline.text.syntax import constant, dotted, last

_KNOWN_LIBRARIES = words_of(
    "torch os sys time json math random re logging pathlib shutil copy numpy pandas tqdm wandb rich"
    " loguru tensorboard"
)

# What stands in one of these may never run, so its function does not certainly make the call.
_PERHAPS = (ast.Try, ast.ExceptHandler, ast.While, ast.IfExp, ast.BoolOp, ast.Lambda)
_EXPECTS_FAILURE = re.compile(r"raises|assertRaises|assertWarns")


def collective_in_rank_block(script: Script) -> Iterator[Finding]:
    """Find collective calls that only some ranks reach: the others never join, the run hangs.

    Nothing is reported if both branches make a call of the same kind, if another block of the other
    ranks makes it (the idiom in which rank 0 goes first), for calls within a subgroup, and in
    branches for a single process.
    """
    partial_calls = _partial_collectives(script)
    paired = _paired(script, partial_calls)
    for call, collective, block in partial_calls:
        if call in paired or _made_inside(script, call, block):
            continue
        if _in_other_branch(script, block, collective):
            continue
        yield _finding(script, call, collective, block)
    yield from _through_functions(script)
    yield from _forward_of_one(script)


def _partial_collectives(script: Script) -> list[tuple[ast.Call, Collective, RankBlock]]:
    return script.cached("partial collectives", lambda: _find_partial_collectives(script))


def _find_partial_collectives(script: Script) -> list[tuple[ast.Call, Collective, RankBlock]]:
    partial_calls = []
    for call in script.calls:
        collective = as_collective(script, call)
        block = rank_block(script, call) if collective else None
        if collective is None or block is None:
            continue
        if not runs_alone(script, call) and not _expected_to_fail(script, call):
            partial_calls.append((call, collective, block))
    return partial_calls


def _paired(
    script: Script, partial_calls: list[tuple[ast.Call, Collective, RankBlock]]
) -> set[ast.Call]:
    """Return the calls that blocks of other ranks match: ``if rank != 0: barrier()``.

    Calls are paired within their function first, where ``rank == 0`` can also match ``rank == 1``;
    the remaining calls are paired over the whole file.
    """
    paired: set[ast.Call] = set()
    for kind in {collective.kind for _, collective, _ in partial_calls}:
        same_kind = [
            (call, block) for call, collective, block in partial_calls if collective.kind == kind
        ]
        paired |= _paired_within_functions(script, same_kind)
        remaining = [(call, block) for call, block in same_kind if call not in paired]
        # torch matches collectives by their order in the process group, not by the line they are
        # in: a barrier of rank 0 in one function meets the barrier of the other ranks in another.
        if {block.side for _, block in remaining} == {"one", "rest"}:
            paired |= {call for call, _ in remaining}
    return paired


def _paired_within_functions(
    script: Script, calls: list[tuple[ast.Call, RankBlock]]
) -> set[ast.Call]:
    by_function: dict[ast.AST, list[tuple[ast.Call, RankBlock]]] = {}
    for call, block in calls:
        by_function.setdefault(script.function(call) or script.tree, []).append((call, block))
    paired: set[ast.Call] = set()
    for mates in by_function.values():
        groups = {(block.side, block.condition) for _, block in mates if block.condition}
        places = {block.at for _, block in mates}
        # Two blocks of one condition leave out the same ranks and match nothing; the two branches
        # of one `if` are compared by `_in_other_branch`.
        if len(groups) > 1 and len(places) > 1:
            paired |= {call for call, _ in mates}
    return paired


def _others(script: Script, block: RankBlock) -> list[ast.Call]:
    """Return the calls that the ranks on the other side of a condition make instead."""
    branch = block.at
    if not isinstance(branch, ast.If):
        return []
    if block.early or not _is_in_body(script, block):
        statements = branch.body
    else:
        # After `if rank == 0: ...; return` what follows in the block is the others' branch.
        statements = branch.orelse + (_after(script, branch) if leaves(branch.body) else [])
    nodes = (node for statement in statements for node in inside(statement))
    return [node for node in nodes if isinstance(node, ast.Call)]


def _is_of_another_file(script: Script, call: ast.Call) -> bool:
    """Return whether a call may be of code that is neither in this file nor in a known library."""
    if last(call) in script.functions or last(call) in script.classes:
        return False
    full = script.full(call.func)
    if full.partition(".")[0] in _KNOWN_LIBRARIES:
        return False
    # Methods of other local objects do not count: they are mostly those of files, lists and
    # loggers, and would make every finding uncertain.
    return bool(full) or dotted(call.func).startswith("self.")


def _in_other_branch(script: Script, block: RankBlock, collective: Collective) -> bool:
    return any(_reaches(script, call, collective.kind) for call in _others(script, block))


def _after(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements that follow one in its block."""
    parent = script.parents.get(statement)
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(parent, block, None)
        if isinstance(statements, list) and statement in statements:
            return statements[statements.index(statement) + 1 :]
    return []


def _is_in_body(script: Script, block: RankBlock) -> bool:
    # ``true`` is the side of the ranks that run the body; the others run the else branch.
    branch = block.at
    assert isinstance(branch, ast.If)
    condition = sides(script, branch.test)
    return condition is not None and condition.true == block.side


def _reaches(script: Script, call: ast.Call, kind: str) -> bool:
    collective = as_collective(script, call)
    if collective is not None and collective.kind == kind:
        return True
    return kind in _kinds_within(script, last(call))


def _kinds_within(script: Script, name: str) -> set[str]:
    """Return the kinds of collectives that the functions of a name call, also indirectly."""
    return script.cached(("kinds within", name), lambda: _find_kinds_within(script, name)) or set()


def _find_kinds_within(script: Script, name: str) -> set[str]:
    reachable: set[str] = set()
    for function in script.functions.get(name, []):
        for node in inside(function):
            if isinstance(node, ast.Call):
                collective = as_collective(script, node)
                reachable |= {collective.kind} if collective else _kinds_within(script, last(node))
    return reachable


def _made_inside(script: Script, call: ast.Call, block: RankBlock) -> bool:
    """Return whether the object of a method call was created in the same block."""
    if not isinstance(call.func, ast.Attribute):
        return False
    # A Trainer(devices=1) made for a last test has one process, so its test() waits for nobody.
    name = dotted(call.func.value)
    for value in script.assigned(name, call) if name else []:
        other_block = rank_block(script, value.at)
        if other_block and other_block.at is block.at:
            return True
    return False


def _expected_to_fail(script: Script, node: ast.AST) -> bool:
    # A test of a timeout leaves a rank out on purpose.
    blocks = [parent for parent in script.up(node) if isinstance(parent, ast.With)]
    contexts = [last(item.context_expr) for block in blocks for item in block.items]
    return any(_EXPECTS_FAILURE.search(name) for name in contexts)


def _finding(
    script: Script, call: ast.Call, collective: Collective, block: RankBlock, through: str = ""
) -> Finding:
    # `tp_rank == 0` holds once in each group, and these ranks may be all that have to come.
    certain = collective.sure and block.sure and block.scope != "group"
    # A function of another file, which the other ranks call, may make the matching call.
    if any(_is_of_another_file(script, other) for other in _others(script, block)):
        certain = False
    return script.finding(
        "collective-in-rank-block",
        call,
        f"{collective.label}{through} waits for all ranks, but"
        f" {_missing_ranks(script, call, block)}",
        why="the others never make this call: the run hangs until the timeout of the process group",
        fix=(
            f"move {collective.label} out of the block, and keep in it only what one rank may do"
            " alone"
        ),
        severity="error" if certain else "warning",
    )


def _missing_ranks(script: Script, call: ast.Call, block: RankBlock) -> str:
    """Return which ranks do not reach a call, as the second half of a sentence."""
    line = getattr(block.at, "lineno", 0)
    if block.condition.startswith("@"):
        return f"{block.condition} (line {line}) lets one rank come here"
    condition = f"`{block.condition}` (line {line})"
    if block.early:
        return f"those with {condition} have left before"
    if _holds_in_body(block, call, script):
        return f"only the ranks for which {condition} holds come here"
    return f"those with {condition} do not come here"


def _holds_in_body(block: RankBlock, call: ast.Call, script: Script) -> bool:
    branch = block.at
    if not isinstance(branch, ast.If):
        return False
    return any(parent in branch.body for parent in [call, *script.up(call)])


def _through_functions(script: Script) -> Iterator[Finding]:
    """Find calls by some ranks only of functions that always make a collective call."""
    always = _functions_with_collective(script)
    for call in script.calls:
        name = last(call)
        # Of two functions with one name, the file does not show which is called, and the method of
        # another object may only share the name.
        if name not in always or len(script.functions.get(name, [])) != 1:
            continue
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) not in ("self", "cls"):
            continue
        block = rank_block(script, call)
        if block is None or runs_alone(script, call) or _expected_to_fail(script, call):
            continue
        inner, collective = always[name]
        if _in_other_branch(script, block, collective):
            continue
        if _has_match_on_other_side(script, collective, block):
            continue
        yield _finding(script, call, collective, block, f" in {name}() (line {inner.lineno})")


def _has_match_on_other_side(script: Script, collective: Collective, block: RankBlock) -> bool:
    """Return whether a block of the other ranks makes a collective call of the same kind."""
    same_kind = [
        other for _, match, other in _partial_collectives(script) if match.kind == collective.kind
    ]
    return any(other.at is not block.at and other.side != block.side for other in same_kind)


def _functions_with_collective(script: Script) -> dict[str, tuple[ast.Call, Collective]]:
    """Return the functions that certainly make a collective call, with that call."""
    collectives: dict[str, tuple[ast.Call, Collective]] = {}
    for name, functions in script.functions.items():
        nodes = [(function, node) for function in functions for node in inside(function)]
        for function, node in nodes:
            collective = as_collective(script, node) if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or collective is None or not collective.sure:
                continue
            if rank_block(script, node) is None and _always(script, node, function):
                collectives.setdefault(name, (node, collective))
    return collectives


def _always(script: Script, node: ast.AST, function: Function) -> bool:
    """Return whether a call is made whenever its function runs in several processes."""
    child = node
    for parent in script.up(node):
        if parent is function:
            return not _may_leave_before(function, child)
        if isinstance(parent, _PERHAPS):
            return False
        # `if world_size > 1` holds wherever there are other ranks to wait for.
        if isinstance(parent, ast.If) and child is not parent.test:
            holds = together(parent.test) if child in parent.body else alone(parent.test)
            if not holds:
                return False
        child = parent
    return False


def _may_leave_before(function: Function, statement: ast.AST) -> bool:
    before = function.body[: function.body.index(statement)] if statement in function.body else []
    # `if world_size == 1: return` takes no rank out of a run of several.
    return any(
        isinstance(node, ast.Return) and not (isinstance(top, ast.If) and alone(top.test))
        for top in before
        for node in inside(top)
    )


def _forward_of_one(script: Script) -> Iterator[Finding]:
    """Find calls of the DDP model by a single rank."""
    # DDP broadcasts buffers in forward, in eval mode too, but only if the model has some; the model
    # is often in another file, so this is a hint.
    switches = ("broadcast_buffers", "forward_sync_buffers")  # torch 2.13 has renamed it
    broadcasts = [keyword(call, name) for call in makes(script, "ddp") for name in switches]
    if not names_of(script, "ddp") or any(constant(value) is False for value in broadcasts):
        return
    for call in script.calls:
        name = dotted(call.func)
        if not name or script.full(call.func) or "ddp" not in kinds(script, call.func, call):
            continue
        block = rank_block(script, call)
        if block is None or not _is_for_one(block) or runs_alone(script, call):
            continue
        # Forwards of both branches meet in the same broadcast.
        if _others_run_forward(script, block):
            continue
        yield script.finding(
            "collective-in-rank-block",
            call,
            f"one rank alone (`{block.condition}`) calls {name}, which DDP has wrapped",
            why=(
                "DDP sends buffers such as BatchNorm's statistics in each forward, and nobody else"
                " takes part"
            ),
            fix=f"call {name}.module(...) where one rank works alone",
            severity="hint",
        )


def _is_for_one(block: RankBlock) -> bool:
    """Return whether a block certainly selects one of all ranks."""
    return block.side == "one" and block.sure and block.scope != "group"


def _others_run_forward(script: Script, block: RankBlock) -> bool:
    branch = block.at
    if not isinstance(branch, ast.If):
        return False
    others = branch.orelse if not block.early else branch.body
    return any(
        isinstance(node, ast.Call) and "ddp" in kinds(script, node.func, node)
        for statement in others
        for node in inside(statement)
    )
