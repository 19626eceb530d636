"""Decide which ranks a condition selects: ``rank == 0`` and ``not args.distributed`` in their many spellings.

The selected ranks are on the side ``"one"``, all others on the side ``"rest"``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from paceline.diagnose.lint.python.script import Script, constant, dotted, inside, last, words_of

_MAIN = re.compile(
    r"_?(is_)?(global_|local_|world_|node_)?(main|master|primary)(_process|_proc|_rank|_node|_worker|_gpu)?"
    r"|_?(is_)?(global_|local_)?(rank_?(zero|0)|rank_is_zero|zero_rank|global_zero|chief|rank_zero_process)"
    r"|is_(global_|local_|world_)?(main|master|primary|root|first|chief|zero|lead|leader)(_process|_rank|_worker)?"
)
_MAIN_TOO_SHORT = words_of("""main master primary chief _main _master rank_zero rank0 rank_0""")
_RANK = re.compile(r"_?(my_?|own_)?((\w+_)?rank|rank_?id|process_index|local_process_index|process_id|ordinal)", re.I)
_GROUP_RANK = re.compile(
    r"(^|_)(dp|tp|pp|mp|ep|cp|sp|group|data_parallel|tensor|pipeline|model|stage|mesh|lora|matrix)_", re.I
)
_NOT_A_RANK = re.compile(r"lora|matrix|ranks$|low_rank|tensor_rank|_r$|page|numerical", re.I)
_LIKE_RANK = words_of("""gpu gpu_id device_id local_gpu worker_id proc_id""")
_DISTRIBUTED = re.compile(
    r"distrib|is_initialized|(^|_)dist($|_)|ddp|multi_?(gpu|node|process)|parallel|is_dist|fsdp", re.I
)
_SIZE = re.compile(
    r"world_?size|num_(processes|gpus|replicas|ranks)|n_?gpus?$|nprocs?|device_count|get_world_size", re.I
)

_DEPENDS_ON_RANK = re.compile(
    r"rank|world_?size|num_replicas|process_index|gpu_?id|worker_?id|hostname|local_process", re.I
)


@dataclass(frozen=True)
class Sides:
    """The sides of the ranks for which a condition is true and false.

    Attributes:
        true: The ranks for which it is true: ``"one"``, ``"rest"``, or ``""`` if unknown.
        false: The ranks for which it is false.
        scope: ``"global"``, ``"local"`` (one rank per node) or ``"group"`` (ranks of a subgroup).
        sure: Whether the condition is certainly about ranks.
    """

    true: str
    false: str
    scope: str = "global"
    sure: bool = True

    def flipped(self) -> Sides:
        """Return the sides of the negated condition."""
        return Sides(self.false, self.true, self.scope, self.sure)


def sides(script: Script, test: ast.expr, depth: int = 0) -> Sides | None:
    """Return the sides of a condition, or None if it does not select ranks."""
    if depth > 8:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        if _is_plain_rank(script, test.operand):
            return Sides("one", "rest", _scope(test.operand), _sure(test.operand))
        inner = sides(script, test.operand, depth + 1)
        return inner.flipped() if inner else None
    if isinstance(test, ast.BoolOp):
        return _of_both(script, test, depth)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _of_comparison(script, test)
    if isinstance(test, ast.Call):
        return _of_call(script, test)
    if isinstance(test, ast.Name | ast.Attribute):
        return _of_name(script, test, depth)
    return None


def _of_both(script: Script, test: ast.BoolOp, depth: int) -> Sides | None:
    by_part = [(part, sides(script, part, depth + 1)) for part in test.values]
    selecting = [part_sides for _, part_sides in by_part if part_sides]
    if not selecting:
        return None
    first = selecting[0]
    if isinstance(test.op, ast.And):
        if any(alone(part) for part in test.values) or not first.true:
            return None
        return Sides(first.true, "", first.scope, first.sure)
    if not all(part_sides or alone(part) for part, part_sides in by_part):
        return None
    if not first.true or any(part_sides.true != first.true for part_sides in selecting):
        return None
    false = first.false if len(selecting) == 1 else ""
    return Sides(first.true, false, first.scope, all(part_sides.sure for part_sides in selecting))


def _of_comparison(script: Script, test: ast.Compare) -> Sides | None:
    subject, op, other = test.left, test.ops[0], test.comparators[0]
    if _is_rank(script, other) and not _is_rank(script, subject):
        subject, other = other, subject
        op = {ast.Lt: ast.Gt(), ast.Gt: ast.Lt(), ast.LtE: ast.GtE(), ast.GtE: ast.LtE()}.get(type(op), op)
    if isinstance(subject, ast.BinOp) and isinstance(subject.op, ast.Mod):
        subject = subject.left
    if not _is_rank(script, subject) or _is_rank(script, other):
        return None
    scope, sure = _scope(subject), _sure(subject)
    picked, others = Sides("one", "rest", scope, sure), Sides("rest", "one", scope, sure)
    if isinstance(op, ast.In | ast.NotIn):
        members = [constant(part) for part in getattr(other, "elts", [])]
        if not members or 0 not in members or len([m for m in members if m != -1]) > 1:
            return None
        return picked if isinstance(op, ast.In) else others
    value = constant(other)
    if value is ...:
        if isinstance(op, ast.Eq | ast.NotEq) and dotted(other):
            unsure = Sides("one", "rest", scope, sure=False)
            return unsure if isinstance(op, ast.Eq) else unsure.flipped()
        return None
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return _by_number(op, value, picked, others)


def _by_number(op: ast.cmpop, value: int, picked: Sides, others: Sides) -> Sides | None:
    if isinstance(op, ast.Eq | ast.Is):
        return picked if value >= 0 else None
    if isinstance(op, ast.NotEq | ast.IsNot):
        return others if value >= 0 else None
    bound = value + 1 if isinstance(op, ast.Gt | ast.LtE) else value  # rank > 0 is rank >= 1, rank <= 0 is rank < 1
    if isinstance(op, ast.Gt | ast.GtE) and bound == 1:
        return others
    if isinstance(op, ast.Lt | ast.LtE) and bound == 1:
        return picked
    return None


def _of_call(script: Script, test: ast.Call) -> Sides | None:
    name = last(test)
    if _MAIN.fullmatch(name) and name not in _MAIN_TOO_SHORT:
        return Sides("one", "rest", _scope(test))
    if name == "bool" and len(test.args) == 1:
        return sides(script, test.args[0], 1)
    return None


def _of_name(script: Script, test: ast.Name | ast.Attribute, depth: int) -> Sides | None:
    if _is_plain_rank(script, test):
        return Sides("rest", "one", _scope(test), _sure(test))
    name = last(test)
    values = script.assigned(dotted(test), test) if dotted(test) else []
    by_value = [sides(script, value.value, depth + 1) for value in values if value.place < 0]
    selecting = [value_sides for value_sides in by_value if value_sides]
    if selecting and len({(value_sides.true, value_sides.false) for value_sides in selecting}) == 1:
        others = [value for value, value_sides in zip(values, by_value, strict=False) if value_sides is None]
        if all(constant(value.value) is not ... for value in others):
            return selecting[0]
    if _MAIN.fullmatch(name) and name not in _MAIN_TOO_SHORT:
        return Sides("one", "rest", _scope(test), sure=not values)
    return None


def _is_rank(script: Script, node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "int" and len(node.args) == 1:
            return _is_rank(script, node.args[0])
        if last(node) in ("get", "getenv") and node.args:
            return _names_rank(constant(node.args[0]))
        name = last(node)
        return name in ("rank", "local_rank", "get_ordinal") or bool(re.fullmatch(r"_?get_(\w+_)?rank", name))
    if isinstance(node, ast.Subscript):
        return _names_rank(constant(node.slice))
    if isinstance(node, ast.Name) and _is_counted(script, node):
        return False
    name = last(node)
    return bool(name and (_names_rank(name) or name in _LIKE_RANK))


def _is_plain_rank(script: Script, node: ast.AST) -> bool:
    """Return whether an expression is a rank used as a condition: ``if rank:``; ``args.as_rank`` may be anything."""
    return bool(re.fullmatch(r"_?(get_)?((global|local|world|dist|ddp)_)?rank", last(node))) and _is_rank(script, node)


def _names_rank(word: object) -> bool:
    return isinstance(word, str) and bool(_RANK.fullmatch(word)) and not _NOT_A_RANK.search(word)


def _is_counted(script: Script, node: ast.Name) -> bool:
    """Return whether a name is the variable of an enclosing loop: one process simulates all ranks."""
    for parent in script.up(node):
        if isinstance(parent, ast.For) and any(
            isinstance(part, ast.Name) and part.id == node.id for part in ast.walk(parent.target)
        ):
            return True
    return False


def _scope(node: ast.AST) -> str:
    name = last(node).lower()
    if isinstance(node, ast.Subscript):
        name = str(constant(node.slice)).lower()
    if isinstance(node, ast.Call) and node.args:
        if last(node) == "int":
            return _scope(node.args[0])
        name = str(constant(node.args[0])).lower() if last(node) in ("get", "getenv") else "group_" + name
    if _GROUP_RANK.search(name):
        return "group"
    is_local = "local" in name or "node" in name or name in _LIKE_RANK
    return "local" if is_local else "global"


def _sure(node: ast.AST) -> bool:
    return last(node) not in _LIKE_RANK and _scope(node) != "group"


def alone(test: ast.expr) -> bool:
    """Return whether a condition is only true for a single process (``not args.distributed``, ``world_size == 1``)."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return together(test.operand)
    if isinstance(test, ast.BoolOp):
        parts = [alone(part) for part in test.values]
        return any(parts) if isinstance(test.op, ast.And) else all(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compares_alone(test)
    return bool(re.fullmatch(r"(is_)?single_?(gpu|process|node)?", last(test)))


def _compares_alone(test: ast.Compare) -> bool:
    """Return whether a comparison is only true for a single process."""
    name, op, value = last(test.left), test.ops[0], constant(test.comparators[0])
    if _SIZE.search(name):
        at_most_one = isinstance(op, ast.Eq | ast.LtE) and value in (0, 1)
        less_than_two = isinstance(op, ast.Lt) and value in (1, 2)
        return at_most_one or less_than_two
    if _names_rank(name) or _is_rank_of_environment(test.left):
        unset = isinstance(op, ast.Eq) and value == -1
        negative = isinstance(op, ast.Lt) and value == 0
        return unset or negative
    return isinstance(op, ast.Is) and value is None and bool(_DISTRIBUTED.search(name))


def _is_rank_of_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last(node) == "int" and any(_names_rank(w) for w in _strings(node))


def _strings(node: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def together(test: ast.expr) -> bool:
    """Return whether a condition is true in every run of several processes (``dist.is_initialized()``)."""
    if isinstance(test, ast.BoolOp):
        return all(together(part) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return alone(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compares_together(test)
    return bool(_DISTRIBUTED.search(last(test)))


def _compares_together(test: ast.Compare) -> bool:
    """Return whether a comparison is true in every run of several processes."""
    name, op, value = last(test.left), test.ops[0], constant(test.comparators[0])
    if _SIZE.search(name):
        return isinstance(op, ast.Gt | ast.GtE | ast.NotEq) and value in (0, 1, 2)
    if _names_rank(name) or _is_rank_of_environment(test.left):
        is_set = isinstance(op, ast.NotEq | ast.Gt | ast.GtE) and value == -1
        not_negative = isinstance(op, ast.GtE) and value == 0
        return is_set or not_negative
    return isinstance(op, ast.IsNot) and value is None and bool(_DISTRIBUTED.search(name))


def mentions_rank(node: ast.AST) -> bool:
    """Return whether the names in an expression suggest that it depends on the rank or the world size."""
    parts = [part for part in inside(node, functions=True) if isinstance(part, ast.Name | ast.Attribute)]
    if any(_DEPENDS_ON_RANK.search(last(part)) for part in parts):
        return True
    return any(re.search(r"\brank|RANK|PROCID", text) for text in _strings(node))
