"""Calls that all ranks must make together, and where a script lets only some of them come."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.diagnose.lint.python.meetings import Meeting, meeting
from paceline.diagnose.lint.python.objects import kinds, makes, names_of
from paceline.diagnose.lint.python.ranks import Partial, partial, runs_alone
from paceline.diagnose.lint.python.script import Function, Script, inside, keyword, words_of
from paceline.errors import Finding
from paceline.text.rank_conditions import alone, leaves, sides, together
from paceline.text.syntax import constant, dotted, last

_BY_GROUP_OF_ONE_NODE = re.compile(r"local|node|intra", re.I)


_KNOWN_LIBRARIES = words_of(
    "torch os sys time json math random re logging pathlib shutil copy numpy pandas tqdm wandb rich loguru tensorboard"
)


def collective_in_rank_block(script: Script) -> Iterator[Finding]:
    """A call that all ranks must make stands where only some of them come: the others never join, and the run hangs.

    Silent where both branches make a call of the kind, where another block of the other ranks does (the idiom in which
    rank 0 goes first), for calls within a group of their own, and in branches for one process.
    """
    met = _partial_meetings(script)
    paired = _paired(script, met)
    for call, told, where in met:
        if call in paired or _made_inside(script, call, where):
            continue
        if isinstance(where.at, ast.If) and _in_other_branch(script, where, told):
            continue
        yield _finding(script, call, told, where)
    yield from _through_functions(script)
    yield from _forward_of_one(script)


def _partial_meetings(script: Script) -> list[tuple[ast.Call, Meeting, Partial]]:
    return script.ask("partial meetings", lambda: _find_partial_meetings(script))


def _find_partial_meetings(script: Script) -> list[tuple[ast.Call, Meeting, Partial]]:
    found = []
    for call in script.calls:
        told = meeting(script, call)
        where = partial(script, call) if told else None
        if told and where and not runs_alone(script, call) and not _expected_to_fail(script, call):
            found.append((call, told, where))
    return found


def _paired(script: Script, met: list[tuple[ast.Call, Meeting, Partial]]) -> set[ast.Call]:
    """Return the calls that blocks of other ranks answer: ``if rank != 0: barrier()``, later ``if rank == 0: ...``.

    First within a function, where also ``rank == 0`` and ``rank == 1`` may meet; what is left over, over the file.
    """
    found: set[ast.Call] = set()
    for kind in {told.kind for _, told, _ in met}:
        mine = [(call, where) for call, told, where in met if told.kind == kind]
        by_function: dict[ast.AST, list[tuple[ast.Call, Partial]]] = {}
        for call, where in mine:
            by_function.setdefault(script.function(call) or script.tree, []).append((call, where))
        for mates in by_function.values():
            if len({(where.side, where.says) for _, where in mates if where.says}) > 1 and len(_places(mates)) > 1:
                found |= {call for call, _ in mates}
        left = [(call, where) for call, where in mine if call not in found]
        if {where.side for _, where in left} == {"one", "rest"}:
            found |= {call for call, _ in left}
    return found


def _places(met: list[tuple[ast.Call, Partial]]) -> set[ast.AST]:
    return {where.at for _, where in met}


def _others(script: Script, where: Partial) -> list[ast.stmt]:
    """Return what the ranks on the other side of a condition do instead."""
    branch = where.at
    if not isinstance(branch, ast.If):
        return []
    if where.early or not _is_in_body(script, where):
        return branch.body
    return branch.orelse + (_after(script, branch) if leaves(branch.body) else [])


def _may_be_answered_elsewhere(script: Script, where: Partial) -> bool:
    """Say whether the other ranks call something that this file does not hold: it may well make the matching call."""
    for statement in _others(script, where):
        for node in inside(statement):
            if not isinstance(node, ast.Call) or last(node) in script.functions or last(node) in script.classes:
                continue
            full = script.full(node.func)
            if full.partition(".")[0] not in _KNOWN_LIBRARIES and (full or dotted(node.func).startswith("self.")):
                return True
    return False


def _in_other_branch(script: Script, where: Partial, told: Meeting) -> bool:
    branch = where.at
    assert isinstance(branch, ast.If)
    for statement in _others(script, where):
        for node in inside(statement):
            if isinstance(node, ast.Call) and _reaches(script, node, told.kind):
                return True
    return False


def _after(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    """Return what follows a statement in its block."""
    parent = script.parents.get(statement)
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(parent, block, None)
        if isinstance(statements, list) and statement in statements:
            return statements[statements.index(statement) + 1 :]
    return []


def _is_in_body(script: Script, where: Partial) -> bool:
    # The side of the body is what the condition says of true; the else branch holds the other.
    branch = where.at
    assert isinstance(branch, ast.If)
    told = sides(script, branch.test)
    return told is not None and told.true == where.side


def _reaches(script: Script, call: ast.Call, kind: str) -> bool:
    told = meeting(script, call)
    return (told is not None and told.kind == kind) or kind in _kinds_within(script, last(call))


def _kinds_within(script: Script, name: str) -> set[str]:
    """Return the kinds of calls for all ranks that the functions of a name make, themselves or by others."""
    return script.ask(("kinds within", name), lambda: _find_kinds_within(script, name)) or set()


def _find_kinds_within(script: Script, name: str) -> set[str]:
    found: set[str] = set()
    for function in script.functions.get(name, []):
        for node in inside(function):
            if isinstance(node, ast.Call):
                told = meeting(script, node)
                found |= {told.kind} if told else _kinds_within(script, last(node))
    return found


def _made_inside(script: Script, call: ast.Call, where: Partial) -> bool:
    """Say whether the object was made in the same block: a Trainer of one device for the last test."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name = dotted(call.func.value)
    for value in script.assigned(name, call) if name else []:
        block = partial(script, value.at)
        if block and block.at is where.at:
            return True
    return False


def _expected_to_fail(script: Script, node: ast.AST) -> bool:
    for parent in script.up(node):
        if isinstance(parent, ast.With):
            for item in parent.items:
                if re.search(r"raises|assertRaises|assertWarns", last(item.context_expr)):
                    return True
    return False


def _finding(script: Script, call: ast.Call, told: Meeting, where: Partial, through: str = "") -> Finding:
    line = getattr(where.at, "lineno", 0)
    who = "the ranks for which" if where.side == "one" or where.early else "the ranks other than those of"
    behind = f"`{where.says}` (line {line})" if not where.says.startswith("@") else f"{where.says} (line {line})"
    if where.says.startswith("@"):
        what = f"{told.label}{through} waits for all ranks, but {behind} lets one rank come here"
    elif where.early:
        what = f"{told.label}{through} waits for all ranks, but those with {behind} have left before"
    else:
        what = f"{told.label}{through} waits for all ranks, but only {who} {behind} holds come here"
        if where.side == "rest" and not _holds_in_body(where, call, script):
            what = f"{told.label}{through} waits for all ranks, but those with {behind} do not come here"
    certain = told.sure and where.sure and where.scope != "group" and not _may_be_answered_elsewhere(script, where)
    return script.finding(
        "collective-in-rank-block",
        call,
        what,
        why="the others never make this call: the run hangs until the timeout of the process group",
        fix=f"move {told.label} out of the block, and keep in it only what one rank may do alone",
        severity="error" if certain else "warning",
    )


def _holds_in_body(where: Partial, call: ast.Call, script: Script) -> bool:
    branch = where.at
    if not isinstance(branch, ast.If):
        return False
    return any(parent in branch.body for parent in [call, *script.up(call)])


def _through_functions(script: Script) -> Iterator[Finding]:
    """A function of the file that always makes such a call, called for some ranks only."""
    always = _functions_that_meet(script)
    for call in script.calls:
        name = last(call)
        if name not in always or len(script.functions.get(name, [])) != 1:
            continue
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) not in ("self", "cls"):
            continue
        where = partial(script, call)
        if where is None or runs_alone(script, call) or _expected_to_fail(script, call):
            continue
        inner, told = always[name]
        if isinstance(where.at, ast.If) and _in_other_branch(script, where, told):
            continue
        if any(
            its.kind == told.kind and elsewhere.at is not where.at and elsewhere.side != where.side
            for _, its, elsewhere in _partial_meetings(script)
        ):
            continue
        yield _finding(script, call, told, where, f" in {name}() (line {inner.lineno})")


def _functions_that_meet(script: Script) -> dict[str, tuple[ast.Call, Meeting]]:
    found: dict[str, tuple[ast.Call, Meeting]] = {}
    for name, functions in script.functions.items():
        for function in functions:
            for node in inside(function):
                told = meeting(script, node) if isinstance(node, ast.Call) else None
                if told and told.sure and partial(script, node) is None and _always(script, node, function):
                    assert isinstance(node, ast.Call)
                    found.setdefault(name, (node, told))
    return found


def _always(script: Script, node: ast.AST, function: Function) -> bool:
    """Say whether a call is made whenever its function runs in several processes, as far as can be seen."""
    child = node
    for parent in script.up(node):
        if parent is function:
            return not _may_leave_before(function, child)
        if isinstance(parent, ast.If) and child is not parent.test:
            holds = together(parent.test) if child in parent.body else alone(parent.test)
            if not holds:
                return False
        elif isinstance(parent, ast.Try | ast.ExceptHandler | ast.While | ast.IfExp | ast.BoolOp | ast.Lambda):
            return False
        child = parent
    return False


def _may_leave_before(function: Function, statement: ast.AST) -> bool:
    before = function.body[: function.body.index(statement)] if statement in function.body else []
    return any(
        isinstance(node, ast.Return) and not (isinstance(top, ast.If) and alone(top.test))
        for top in before
        for node in inside(top)
    )


def _forward_of_one(script: Script) -> Iterator[Finding]:
    """The wrapped model is called by one rank alone, which works only as long as DDP has no buffers to send."""
    if not names_of(script, "ddp"):
        return
    for call in script.calls:
        name = dotted(call.func)
        if not name or script.full(call.func) or "ddp" not in kinds(script, call.func, call):
            continue
        where = partial(script, call)
        if where is None or where.side != "one" or not where.sure or where.scope == "group":
            continue
        if runs_alone(script, call) or _meets_forward(script, where):
            continue
        if any(constant(keyword(made, "broadcast_buffers")) is False for made in makes(script, "ddp")):
            continue
        yield script.finding(
            "collective-in-rank-block",
            call,
            f"one rank alone (`{where.says}`) calls {name}, which DDP has wrapped",
            why="DDP sends buffers such as BatchNorm's statistics in each forward, and nobody else takes part",
            fix=f"call {name}.module(...) where one rank works alone",
            severity="hint",
        )


def _meets_forward(script: Script, where: Partial) -> bool:
    branch = where.at
    if not isinstance(branch, ast.If):
        return False
    others = branch.orelse if not where.early else branch.body
    return any(isinstance(n, ast.Call) and "ddp" in kinds(script, n.func, n) for s in others for n in inside(s))
