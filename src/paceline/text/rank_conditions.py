"""Decide which ranks a condition of a script selects, such as ``rank == 0``. Pure.

The selected ranks are on the side ``"one"``, all others on the side ``"rest"``. ``alone`` and
``together`` recognize conditions about the number of processes, such as ``not args.distributed``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from paceline.text.syntax import constant, dotted, last, words

_MAIN = re.compile(
    r"_?(is_)?(global_|local_|world_|node_)?(main|master|primary)(_process|_proc|_rank|_node|_worker|_gpu)?"
    r"|_?(is_)?(global_|local_)?(rank_?(zero|0)|rank_is_zero|zero_rank|global_zero|chief|rank_zero_process)"
    r"|is_(global_|local_|world_)?(main|master|primary|root|first|chief|zero|lead|leader)(_process|_rank|_worker)?"
)
_MAIN_TOO_SHORT = re.compile(r"_?(main|master)|primary|chief|rank_zero|rank_?0")
_RANK = re.compile(
    r"_?(my_?|own_)?((\w+_)?rank|rank_?id|process_index|local_process_index|process_id|ordinal)",
    re.I,
)
_PLAIN_RANK = re.compile(r"_?(get_)?((global|local|world|dist|ddp)_)?rank")
_GROUP_RANK = re.compile(
    r"(^|_)(dp|tp|pp|mp|ep|cp|sp|group|data_parallel|tensor|pipeline|model|stage|mesh|lora|matrix)_",
    re.I,
)
_NOT_A_RANK = re.compile(r"lora|matrix|ranks$|low_rank|tensor_rank|_r$|page|numerical", re.I)
# Expressions that are the rank of this process, also where a name such as ``r`` stands for them.
_OWN_RANK = re.compile(
    r"((torch\.)?(dist|distributed|hvd|xm)\.)?get_((global|local|world)_)?(rank|ordinal)\(\)"
    r"|(int\()?os\.(environ\[|environ\.get\(|getenv\()'(LOCAL_)?RANK'.*"
)
_LIKE_RANK = frozenset(["gpu", "gpu_id", "device_id", "local_gpu", "worker_id", "proc_id"])
_DISTRIBUTED = re.compile(
    r"distrib|is_initialized|(^|_)dist($|_)|ddp|multi_?(gpu|node|process)|parallel|is_dist|fsdp",
    re.I,
)
_SIZE = re.compile(
    r"world_?size|num_(processes|gpus|replicas|ranks)|n_?gpus?$|nprocs?|device_count|get_world_size",
    re.I,
)
# Names that are unambiguous in any condition; lora_rank or ranking are the same on all ranks.
_CHOOSES = re.compile(
    r"((get|global|local|node|my|this|dp|ddp|data_parallel|proc|process|world)_)*_?rank(_zero|_id)?"
    r"|is_(main|master|root|chief|global_zero|local_zero|rank_zero|rank0)(_\w+)?"
    r"|(main|local_main)_process|process_index",
    re.I,
)
_DECORATOR = re.compile(
    r"\w*rank_zero\w*|on_main_process|on_local_main_process|on_last_process|master_only"
    r"|main_process_only|rank_?0_only|main_rank_only",
    re.I,
)
_EXITS = ("exit", "_exit", "quit")
_MIRRORED = {ast.Lt: ast.Gt(), ast.Gt: ast.Lt(), ast.LtE: ast.GtE(), ast.GtE: ast.LtE()}
_DEEPEST = 8
_MOST_VALUES = 4


class Assignment(Protocol):
    """One assignment to a name."""

    @property
    def value(self) -> ast.expr:
        """The assigned expression; for a tuple, the call that returns it."""

    @property
    def place(self) -> int:
        """Position of the target in a tuple, or -1."""


class Names(Protocol):
    """What is known about the names of a script."""

    @property
    def counted_up(self) -> Set[str]:
        """Names to which something is added: ``i += dist.get_world_size()``."""

    def assigned(self, name: str, at: ast.AST) -> Sequence[Assignment]:
        """Return the assignments to a name that are visible from a node."""

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, the nearest first."""


@dataclass(frozen=True)
class OneAssignment:
    """An assignment to a single name."""

    value: ast.expr
    place: int = -1


@dataclass(frozen=True)
class TreeNames:
    """The names in a syntax tree, regardless of the functions they are in."""

    # the parent of each node
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict, repr=False)
    # the assignments to each plain name
    values: dict[str, list[OneAssignment]] = field(default_factory=dict, repr=False)
    counted_up: set[str] = field(default_factory=set, repr=False)  # names with ``+=``

    @classmethod
    def of(cls, tree: ast.AST) -> TreeNames:
        """Collect the names of a syntax tree."""
        names = cls()
        for node in ast.walk(tree):
            names.parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    names.values.setdefault(dotted(target), []).append(OneAssignment(node.value))
            elif isinstance(node, ast.AugAssign):
                names.counted_up.add(dotted(node.target))
        return names

    def assigned(self, name: str, at: ast.AST) -> Sequence[Assignment]:
        """Return all assignments to a name; none if there are too many to decide."""
        values = self.values.get(name, [])
        return values if len(values) <= _MOST_VALUES else []

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, the nearest first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)


@dataclass(frozen=True)
class Sides:
    """How a condition divides the ranks."""

    true: str  # the side for which it holds: ``"one"``, ``"rest"``, or ``""`` if unknown
    false: str  # the side for which it does not hold
    # ``"global"``, ``"local"`` (one per node) or ``"group"`` (within a part of the ranks)
    scope: str = "global"
    sure: bool = True  # whether the condition is certainly about ranks

    def flipped(self) -> Sides:
        """Return the sides of the negated condition."""
        return Sides(self.false, self.true, self.scope, self.sure)


def chooses(names: Names, test: ast.expr) -> bool:
    """Return whether a condition differs between ranks, regardless of which ranks it selects.

    A comparison with -1 or None tests whether there are several ranks, not which rank this is.
    """
    divided = sides(names, test)
    if divided is not None and divided.sure:
        return True
    comparisons = [node for node in ast.walk(test) if isinstance(node, ast.Compare)]
    if any(_is_none_or_negative(value) for node in comparisons for value in node.comparators):
        return False
    named = [node for node in ast.walk(test) if isinstance(node, ast.Name)]
    counted = {node.id for node in named if _is_counted(names, node)}
    return any(_CHOOSES.fullmatch(word) for word in words(test) if word not in counted)


def _is_none_or_negative(node: ast.expr) -> bool:
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return is_negative or constant(node) is None


def decorator_scope(name: str) -> str:
    """Return the scope of a decorator that admits only some ranks to a function; else empty."""
    if not _DECORATOR.fullmatch(name):
        return ""
    return "local" if "local" in name else "global"


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether a block ends by leaving the function, the iteration or the program."""
    end = body[-1]
    if leaves_function(body):
        return True
    call = end.value if isinstance(end, ast.Expr) else None
    return isinstance(call, ast.Call) and last(call) in _EXITS


def leaves_function(body: Sequence[ast.stmt]) -> bool:
    """Return whether a block ends by leaving the function or the iteration; the program runs on."""
    return isinstance(body[-1], ast.Return | ast.Continue | ast.Break)


def sides(names: Names, test: ast.expr, depth: int = 0) -> Sides | None:
    """Return how a condition divides the ranks; None if it does not or if that is unknown."""
    if depth > _DEEPEST:
        return None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        if _is_plain_rank(names, test.operand):
            return Sides("one", "rest", _scope(test.operand), _sure(test.operand))
        inner = sides(names, test.operand, depth + 1)
        return inner.flipped() if inner else None
    if isinstance(test, ast.BoolOp):
        parts = [(part, sides(names, part, depth + 1)) for part in test.values]
        return _of_and(parts) if isinstance(test.op, ast.And) else _of_or(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _of_comparison(names, test)
    if isinstance(test, ast.Call):
        return _of_call(names, test)
    if isinstance(test, ast.Name | ast.Attribute):
        return _of_name(names, test, depth)
    return None


def _of_and(parts: Sequence[tuple[ast.expr, Sides | None]]) -> Sides | None:
    first = next((part_sides for _, part_sides in parts if part_sides), None)
    if first is None or not first.true or any(alone(part) for part, _ in parts):
        return None
    return Sides(first.true, "", first.scope, first.sure)


def _of_or(parts: Sequence[tuple[ast.expr, Sides | None]]) -> Sides | None:
    dividing = [part_sides for _, part_sides in parts if part_sides]
    if not dividing or not all(part_sides or alone(part) for part, part_sides in parts):
        return None
    first = dividing[0]
    if not first.true or any(part_sides.true != first.true for part_sides in dividing):
        return None
    false = first.false if len(dividing) == 1 else ""
    return Sides(first.true, false, first.scope, all(part_sides.sure for part_sides in dividing))


def _of_comparison(names: Names, test: ast.Compare) -> Sides | None:
    op = test.ops[0]
    rank, other = _meant(names, test.left), _meant(names, test.comparators[0])
    if is_rank(names, other) and not is_rank(names, rank):
        rank, op, other = other, _MIRRORED.get(type(op), op), rank
    if isinstance(rank, ast.BinOp) and isinstance(rank.op, ast.Mod):
        rank = rank.left
    if not is_rank(names, rank) or is_rank(names, other):
        return None
    one = Sides("one", "rest", _scope(rank), _sure(rank))
    if isinstance(op, ast.In | ast.NotIn):
        return _by_members(op, other, one)
    value = constant(other)
    if value is ...:
        return _by_unknown(op, other, one)
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return _by_number(op, number, one)


def _by_members(op: ast.cmpop, right: ast.expr, one: Sides) -> Sides | None:
    """Return the sides of ``rank in (-1, 0)``."""
    members = [constant(part) for part in getattr(right, "elts", [])]
    others = [member for member in members if member not in (-1, 0)]
    if 0 not in members or others or members.count(0) > 1:
        return None
    return one if isinstance(op, ast.In) else one.flipped()


def _by_unknown(op: ast.cmpop, right: ast.expr, one: Sides) -> Sides | None:
    """Return the sides of ``rank == args.main_rank``."""
    if not isinstance(op, ast.Eq | ast.NotEq) or not dotted(right):
        return None
    unsure = Sides("one", "rest", one.scope, sure=False)
    return unsure if isinstance(op, ast.Eq) else unsure.flipped()


def _by_number(op: ast.cmpop, value: int, one: Sides) -> Sides | None:
    if isinstance(op, ast.Eq | ast.Is):
        return one if value >= 0 else None
    if isinstance(op, ast.NotEq | ast.IsNot):
        return one.flipped() if value >= 0 else None
    above_0 = (ast.Gt, 0), (ast.GtE, 1)
    if (type(op), value) in above_0:
        return one.flipped()
    below_1 = (ast.Lt, 1), (ast.LtE, 0)
    return one if (type(op), value) in below_1 else None


def _meant(names: Names, node: ast.expr) -> ast.expr:
    """Return the rank that a name such as ``r`` stands for; else the expression itself.

    Constants may be assigned to it as well, for a run of one process.
    """
    if not isinstance(node, ast.Name) or is_rank(names, node) or _is_counted(names, node):
        return node
    values = [value.value for value in names.assigned(node.id, node) if value.place < 0]
    ranks = [value for value in values if _is_own_rank(names, value)]
    others = [value for value in values if value not in ranks]
    if not ranks or any(constant(other) is ... for other in others):
        return node
    return node if node.id in names.counted_up else ranks[0]


def _is_own_rank(names: Names, value: ast.expr) -> bool:
    """Return whether a value is certainly the rank of this process, and not a column ``"rank"``."""
    if not is_rank(names, value) or any(text.islower() for text in _texts(value)):
        return False
    return _OWN_RANK.fullmatch(ast.unparse(value)) is not None


def _of_call(names: Names, test: ast.Call) -> Sides | None:
    if _names_main(last(test)):
        return Sides("one", "rest", _scope(test))
    if last(test) == "bool" and len(test.args) == 1:
        return sides(names, test.args[0], 1)
    return None


def _of_name(names: Names, test: ast.Name | ast.Attribute, depth: int) -> Sides | None:
    rank = _meant(names, test)
    if rank is not test or _is_plain_rank(names, test):
        return Sides("rest", "one", _scope(rank), _sure(rank))
    values = names.assigned(dotted(test), test) if dotted(test) else []
    assigned_sides = _of_values(names, values, depth)
    if assigned_sides is not None:
        return assigned_sides
    if not _names_main(last(test)):
        return None
    return Sides("one", "rest", _scope(test), sure=not values)


def _of_values(names: Names, values: Sequence[Assignment], depth: int) -> Sides | None:
    """Return the sides of a name from its assigned conditions.

    All conditions must agree; other assigned values must be constants.
    """
    plain = [value for value in values if value.place < 0]
    sides_of_values = [sides(names, value.value, depth + 1) for value in plain]
    dividing = [value_sides for value_sides in sides_of_values if value_sides]
    if len({(value_sides.true, value_sides.false) for value_sides in dividing}) != 1:
        return None
    others = [
        value
        for value, value_sides in zip(plain, sides_of_values, strict=True)
        if value_sides is None
    ]
    return dividing[0] if all(constant(value.value) is not ... for value in others) else None


def _names_main(name: str) -> bool:
    return bool(_MAIN.fullmatch(name)) and not _MAIN_TOO_SHORT.fullmatch(name)


def is_rank(names: Names, node: ast.AST) -> bool:
    """Return whether an expression is named as the number of this rank."""
    if isinstance(node, ast.Call):
        return _is_call_for_rank(names, node)
    if isinstance(node, ast.Subscript):
        return _names_rank(constant(node.slice))
    if isinstance(node, ast.Name) and _is_counted(names, node):
        return False
    name = last(node)
    return bool(name and (_names_rank(name) or name in _LIKE_RANK))


def _is_call_for_rank(names: Names, call: ast.Call) -> bool:
    name = last(call)
    if isinstance(call.func, ast.Name) and name == "int" and len(call.args) == 1:
        return is_rank(names, call.args[0])
    if name in ("get", "getenv") and call.args:
        return _names_rank(constant(call.args[0]))
    return name in ("rank", "local_rank", "get_ordinal") or bool(
        re.fullmatch(r"_?get_(\w+_)?rank", name)
    )


def _is_plain_rank(names: Names, node: ast.AST) -> bool:
    """Return whether an expression used as a condition is a rank, as in ``if rank:``.

    A name such as ``args.as_rank`` may be anything.
    """
    return bool(_PLAIN_RANK.fullmatch(last(node))) and is_rank(names, node)


def _names_rank(word: object) -> bool:
    return isinstance(word, str) and bool(_RANK.fullmatch(word)) and not _NOT_A_RANK.search(word)


def _is_counted(names: Names, node: ast.Name) -> bool:
    """Return whether a name is the variable of an enclosing loop, which simulates all ranks."""
    loops = [parent for parent in names.up(node) if isinstance(parent, ast.For)]
    targets = [part for loop in loops for part in ast.walk(loop.target)]
    return any(isinstance(part, ast.Name) and part.id == node.id for part in targets)


def _scope(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and node.args and last(node) == "int":
        return _scope(node.args[0])
    name = _name_for_scope(node)
    if _GROUP_RANK.search(name):
        return "group"
    is_local = "local" in name or "node" in name or name in _LIKE_RANK
    return "local" if is_local else "global"


def _name_for_scope(node: ast.AST) -> str:
    """Return the name of a rank in lower case, that of a variable for ``os.environ["RANK"]``."""
    if isinstance(node, ast.Subscript):
        return str(constant(node.slice)).lower()
    if not isinstance(node, ast.Call) or not node.args:
        return last(node).lower()
    if last(node) in ("get", "getenv"):
        return str(constant(node.args[0])).lower()
    return f"group_{last(node).lower()}"  # get_rank(group)


def _sure(node: ast.AST) -> bool:
    return last(node) not in _LIKE_RANK and _scope(node) != "group"


def alone(test: ast.expr) -> bool:
    """Return whether a condition holds only for a single process, such as ``world_size == 1``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return together(test.operand)
    if isinstance(test, ast.BoolOp):
        parts = [alone(part) for part in test.values]
        return any(parts) if isinstance(test.op, ast.And) else all(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compares_for_one(test)
    return bool(re.fullmatch(r"(is_)?single_?(gpu|process|node)?", last(test)))


def _compares_for_one(test: ast.Compare) -> bool:
    name, op, value = last(test.left), test.ops[0], constant(test.comparators[0])
    if _SIZE.search(name):
        at_most_1 = isinstance(op, ast.Eq | ast.LtE) and value in (0, 1)
        below_2 = isinstance(op, ast.Lt) and value in (1, 2)
        return at_most_1 or below_2
    if _names_rank(name) or _is_rank_of_environment(test.left):
        if isinstance(value, str) and isinstance(op, ast.Eq):
            return value == "cpu"  # a process without a group
        is_minus_1 = isinstance(op, ast.Eq) and value == -1
        return is_minus_1 or (isinstance(op, ast.Lt) and value == 0)
    return isinstance(op, ast.Is) and value is None and bool(_DISTRIBUTED.search(name))


def together(test: ast.expr) -> bool:
    """Return whether a condition holds in every run of several processes.

    An example is ``dist.is_initialized()``.
    """
    if isinstance(test, ast.BoolOp):
        return all(together(part) for part in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return alone(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compares_for_several(test)
    return bool(_DISTRIBUTED.search(last(test)))


def _compares_for_several(test: ast.Compare) -> bool:
    name, op, value = last(test.left), test.ops[0], constant(test.comparators[0])
    if _SIZE.search(name):
        return isinstance(op, ast.Gt | ast.GtE | ast.NotEq) and value in (0, 1, 2)
    if _names_rank(name) or _is_rank_of_environment(test.left):
        lowest = 0 if isinstance(op, ast.GtE) else -1
        return isinstance(op, ast.NotEq | ast.Gt | ast.GtE) and value in (-1, lowest)
    return isinstance(op, ast.IsNot) and value is None and bool(_DISTRIBUTED.search(name))


def _is_rank_of_environment(node: ast.AST) -> bool:
    is_int = isinstance(node, ast.Call) and last(node) == "int"
    return is_int and any(map(_names_rank, _texts(node)))


def _texts(node: ast.AST) -> list[str]:
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]
