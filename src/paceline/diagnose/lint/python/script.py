"""A training script as a small model: names resolved through its imports, calls, assignments, functions.

The model knows a single file and no types. It answers "what is this name surely?" and stays silent otherwise; the
checks rest on that. All walks are loops, so that a deeply nested file cannot exhaust the stack.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from paceline.errors import Finding
from paceline.text.syntax import dotted, last

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_MAX_EVIDENCE = 160
_MAX_VALUES = 100
T = TypeVar("T")


@dataclass(frozen=True)
class Assigned:
    """One assignment to a name.

    Attributes:
        value: The expression that is assigned; of a tuple the call that makes it.
        place: Which of the targets of a tuple this is, or -1.
        at: The statement.
    """

    value: ast.expr
    place: int
    at: ast.AST


@dataclass(frozen=True)
class Script:
    """A parsed file.

    Attributes:
        name: Its path as typed.
        lines: Its text by lines.
        tree: Its syntax tree.
        nodes: All nodes, parents before children, in the order of the text.
        parents: The parent of each node.
        scopes: The function that each node is in, or the module.
        known: Answers that were found already, for the questions that are asked again and again.
    """

    name: str
    lines: list[str]
    tree: ast.Module
    nodes: list[ast.AST] = field(repr=False)
    parents: dict[ast.AST, ast.AST] = field(repr=False)
    scopes: dict[ast.AST, Scope] = field(repr=False)
    known: dict[object, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, tree: ast.Module, source: str, name: str) -> Script:
        """Return the model of a syntax tree."""
        nodes: list[ast.AST] = []
        parents: dict[ast.AST, ast.AST] = {}
        scopes: dict[ast.AST, Scope] = {tree: tree}
        stack: list[ast.AST] = [tree]
        while stack:
            node = stack.pop()
            nodes.append(node)
            scope = node if isinstance(node, _SCOPES) else scopes[node]
            children = list(ast.iter_child_nodes(node))
            for child in children:
                parents[child] = node
                scopes[child] = scope
            stack.extend(reversed(children))
        return cls(name, source.splitlines(), tree, nodes, parents, scopes)

    def ask(self, question: object, answer: Callable[[], T]) -> T:
        """Return the answer to a question, worked out once; a question within itself is answered by None."""
        if question not in self.known:
            self.known[question] = None
            self.known[question] = answer()
        found: T = self.known[question]
        return found

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of the text."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def inherit(
        self, question: str, node: ast.AST, look: Callable[[Script, ast.AST, ast.AST], tuple[T] | None]
    ) -> T | None:
        """Return the answer of the nearest parent that has one; each step upwards is looked at once for all nodes.

        Args:
            question: What is asked, the name under which answers are kept.
            node: Where the search begins.
            look: Looks at a parent and the child that it was reached from; a tuple of one is the answer.
        """
        path: list[ast.AST] = []
        found: T | None = None
        while True:
            if (question, node) in self.known:
                found = self.known[question, node]
                break
            path.append(node)
            parent = self.parents.get(node)
            told = look(self, parent, node) if parent is not None else None
            if told is not None:
                found = told[0]
            if told is not None or parent is None:
                break
            node = parent
        self.known.update(dict.fromkeys(((question, step) for step in path), found))
        return found

    def calls_of(self, name: str) -> list[ast.Call]:
        """Return the calls of functions and methods of a name."""
        return self._calls_by_name.get(name, [])

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            found[last(call)].append(call)
        return dict(found)

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """Functions and methods by their bare names."""
        found: dict[str, list[Function]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, Function):
                found[node.name].append(node)
        return dict(found)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes by their names."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """What each imported name stands for; ``dist = torch.distributed`` counts as an import."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    full = alias.name if alias.asname else alias.name.partition(".")[0]
                    found.setdefault(alias.asname or full, full)
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, f"{module}.{alias.name}")
        for name, values in self.values.items():
            if len(values) == 1 and values[0].place < 0 and name not in found:
                chain = dotted(values[0].value)
                root, _, rest = chain.partition(".")
                if rest and root in found and "." not in name and root != name:
                    found[name] = f"{found[root]}.{rest}"
        return found

    @cached_property
    def roots(self) -> frozenset[str]:
        """The top packages that the file imports."""
        return frozenset(full.partition(".")[0] for full in self.imports.values() if not full.startswith("."))

    @cached_property
    def values(self) -> dict[str, list[Assigned]]:
        """Every assignment by its dotted target (``model``, ``self.model``, ``args.rank``), over the whole file."""
        found: dict[str, list[Assigned]] = defaultdict(list)
        for node in self.nodes:
            for target, value in _bindings(node):
                if isinstance(target, ast.Tuple | ast.List):
                    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                    paired = len(parts) == len(target.elts)
                    for place, part in enumerate(target.elts):
                        if name := dotted(part):
                            entry = Assigned(parts[place], -1, node) if paired else Assigned(value, place, node)
                            found[name].append(entry)
                elif name := dotted(target):
                    found[name].append(Assigned(value, -1, node))
        return dict(found)

    def full(self, node: ast.AST) -> str:
        """Return the full name of what an expression names, empty unless it begins with an imported name."""
        chain = dotted(node)
        root, dot, rest = chain.partition(".")
        return self.imports[root] + dot + rest if chain and root in self.imports else ""

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, the nearest first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def scope(self, node: ast.AST) -> Scope:
        """Return the function that a node is in, or the module."""
        return self.scopes[node]

    def function(self, node: ast.AST) -> Function | None:
        """Return the named function that a node is in, if any."""
        scope = self.scopes[node]
        while isinstance(scope, ast.Lambda):
            scope = self.scopes[scope]
        return None if isinstance(scope, ast.Module) else scope

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class that a node is in, if any."""
        for parent in self.up(node):
            if isinstance(parent, ast.ClassDef):
                return parent
        return None

    def assigned(self, name: str, at: ast.AST) -> list[Assigned]:
        """Return what is assigned to a name as seen from a node.

        A plain name is looked up in its own function, then outwards; where it is a parameter, by the same name over
        the whole file, which is how scripts hand ``model`` and ``loader`` on. An attribute is looked up over the file.
        """
        everywhere = self.values.get(name, [])
        if len(everywhere) > _MAX_VALUES:
            return []  # a name that stands for so many things is none that can be known
        if "." in name or not everywhere:
            return everywhere
        by_scope = self._values_by_scope[name]
        scope = self.scopes[at]
        while True:
            if scope in by_scope:
                return by_scope[scope]
            if name in parameters(scope):
                return everywhere
            if scope is self.tree:
                return []
            scope = self.scopes[scope]

    @cached_property
    def _values_by_scope(self) -> dict[str, dict[ast.AST, list[Assigned]]]:
        found: dict[str, dict[ast.AST, list[Assigned]]] = defaultdict(lambda: defaultdict(list))
        for name, values in self.values.items():
            for value in values:
                found[name][self.scopes[value.at]].append(value)
        return found

    def finding(
        self, name: str, node: ast.AST, what: str, *, why: str = "", fix: str = "", severity: str = "warning"
    ) -> Finding:
        """Return a finding at a node, with its line as evidence."""
        line = getattr(node, "lineno", 1)
        text = self.lines[line - 1].strip() if line <= len(self.lines) else ""
        if len(text) > _MAX_EVIDENCE:
            text = text[:_MAX_EVIDENCE] + " ..."
        return Finding(
            name,
            what,
            where=f"{self.name}:{line}",
            evidence=(text,) if text else (),
            why=why,
            fix=fix,
            severity=severity,
        )


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def receiver(call: ast.Call) -> str:
    """Return the dotted name of the object whose method is called, else an empty string."""
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, if it is given by name."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def has_unknown_arguments(call: ast.Call) -> bool:
    """Say whether a call hands on ``*args`` or ``**kwargs``, whose content is not known."""
    return any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def parameters(scope: ast.AST) -> set[str]:
    """Return the names of a function's parameters."""
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    spec = scope.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(a for a in (spec.vararg, spec.kwarg) if a)]
    return {argument.arg for argument in named}


def inside(node: ast.AST, *, functions: bool = False) -> Iterator[ast.AST]:
    """Yield a node and all below it in the order of the text, stopping at inner functions unless asked for."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        if current is not node and not functions and isinstance(current, _SCOPES):
            continue
        stack.extend(reversed(list(ast.iter_child_nodes(current))))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text as a set; so tables of names stay readable."""
    return frozenset(text.split())
