"""Index a training script for the checks: imports, calls, assignments and functions of its syntax
tree.

The index covers a single file and no types. It resolves a name only if that is certain, which the
checks rely on. All walks are loops, so that a deeply nested file cannot exhaust the stack.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from paceline.errors import Finding
from paceline.text.syntax import dotted, last

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)
_MAX_EVIDENCE = 160
_MAX_VALUES = 100


@dataclass(frozen=True)
class Assigned:
    """One assignment to a name."""

    # the expression that is assigned; for unpacking, the expression that is unpacked
    value: ast.expr
    place: int  # index of the target when a tuple is unpacked, else -1
    at: ast.AST  # the statement


@dataclass(frozen=True)
class Script:
    """A parsed file."""

    name: str  # its path as typed
    lines: list[str]  # its text by lines
    tree: ast.Module  # its syntax tree
    # all nodes, parents before children, in the order of the text
    nodes: list[ast.AST] = field(repr=False)
    parents: dict[ast.AST, ast.AST] = field(repr=False)  # the parent of each node
    # the function that each node is in, or the module
    scopes: dict[ast.AST, Scope] = field(repr=False)

    @classmethod
    def of(cls, tree: ast.Module, source: str, name: str) -> Script:
        """Index a syntax tree."""
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

    @cached_property
    def calls(self) -> list[ast.Call]:
        """All calls, in the order of the text."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    def calls_of(self, name: str) -> list[ast.Call]:
        """Return the calls of functions and methods of a name."""
        return self._calls_by_name.get(name, [])

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        calls: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            calls[last(call)].append(call)
        return dict(calls)

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """Functions and methods by their bare names."""
        functions: dict[str, list[Function]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, Function):
                functions[node.name].append(node)
        return dict(functions)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """Classes by their names."""
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """The full name of each imported name; ``dist = torch.distributed`` counts as an import."""
        imports: dict[str, str] = {}
        for node in self.nodes:
            # In `try: import a as x` with a fallback, the fallback is the exception.
            for name, full in _imported(node):
                imports.setdefault(name, full)
        for name, values in self.values.items():
            if len(values) != 1 or values[0].place >= 0 or name in imports or "." in name:
                continue
            root, _, rest = dotted(values[0].value).partition(".")
            if rest and root in imports and root != name:
                imports[name] = f"{imports[root]}.{rest}"
        return imports

    @cached_property
    def roots(self) -> frozenset[str]:
        """The top packages that the file imports."""
        return frozenset(
            full.partition(".")[0] for full in self.imports.values() if not full.startswith(".")
        )

    @cached_property
    def counted_up(self) -> set[str]:
        """The names to which something is added (``step += 1``)."""
        return {dotted(node.target) for node in self.nodes if isinstance(node, ast.AugAssign)}

    @cached_property
    def values(self) -> dict[str, list[Assigned]]:
        """Every assignment of the file by its dotted target (``model``, ``self.model``)."""
        values: dict[str, list[Assigned]] = defaultdict(list)
        for node in self.nodes:
            for target, value in _bindings(node):
                for name, assignment in _assignments(target, value, node):
                    values[name].append(assignment)
        return dict(values)

    def made(self, name: str) -> str:
        """Return the full name of the class or function whose calls are all values of a name."""
        makers = set()
        for value in self.values.get(name, []):
            is_first = isinstance(value.value, ast.Call) and value.place <= 0
            makers.add(self.full(value.value) if is_first else "")
        return makers.pop() if len(makers) == 1 else ""

    def full(self, node: ast.AST) -> str:
        """Return the full name of an expression, or of the function that is called.

        It is empty unless the expression begins with an imported name.
        """
        chain = dotted(node.func if isinstance(node, ast.Call) else node)
        root, dot, rest = chain.partition(".")
        return self.imports[root] + dot + rest if chain and root in self.imports else ""

    def up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of a node, the nearest first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

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
        """Return the assignments of a name as seen from a node.

        A plain name is looked up in its function, then in the enclosing scopes. A parameter is
        looked up by its name in the whole file, since scripts pass ``model`` and ``loader`` under
        the same name. So is an attribute.
        """
        everywhere = self.values.get(name, [])
        if len(everywhere) > _MAX_VALUES:
            return []  # a name with so many values cannot be resolved
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

    def candidates(self, node: ast.expr, at: ast.AST) -> list[ast.expr]:
        """Return an expression, and the values of its name as seen from a node."""
        return [node, *(assigned.value for assigned in self.assigned(dotted(node), at))]

    def origins(self, node: ast.expr) -> list[ast.expr]:
        """Return an expression, and all expressions from which its names come."""
        expressions, followed = [node], set()
        for expression in expressions:  # grows meanwhile
            for part in ast.walk(expression):
                name = dotted(part)
                if name and name not in followed:
                    followed.add(name)
                    expressions += [value.value for value in self.assigned(name, part)]
        return expressions

    @cached_property
    def _values_by_scope(self) -> dict[str, dict[ast.AST, list[Assigned]]]:
        by_scope: dict[str, dict[ast.AST, list[Assigned]]] = defaultdict(lambda: defaultdict(list))
        for name, values in self.values.items():
            for value in values:
                by_scope[name][self.scopes[value.at]].append(value)
        return by_scope

    def finding(
        self,
        name: str,
        node: ast.AST,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        severity: str = "warning",
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


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that an import statement binds, with their full names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            # `import torch.distributed` binds `torch` only.
            full = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or full, full
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            yield alias.asname or alias.name, f"{module}.{alias.name}"


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _assignments(target: ast.expr, value: ast.expr, at: ast.AST) -> Iterator[tuple[str, Assigned]]:
    """Yield the names that a target binds, with their values; unpacking binds several."""
    if not isinstance(target, ast.Tuple | ast.List):
        if name := dotted(target):
            yield name, Assigned(value, -1, at)
        return
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    paired = len(parts) == len(target.elts)
    for place, part in enumerate(target.elts):
        if name := dotted(part):
            yield name, Assigned(parts[place], -1, at) if paired else Assigned(value, place, at)


def receiver(call: ast.Call) -> str:
    """Return the dotted name of the object whose method is called, else an empty string."""
    return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, if it is given by name."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """Return an argument by its name or its position, or None."""
    value = keyword(call, name)
    if value is not None or len(call.args) <= place:
        return value
    positional = call.args[: place + 1]
    return None if any(isinstance(arg, ast.Starred) for arg in positional) else positional[-1]


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the values of all arguments of a call, positional ones first."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def has_unknown_arguments(call: ast.Call) -> bool:
    """Return whether a call passes ``*args`` or ``**kwargs``, whose content is unknown."""
    return any(k.arg is None for k in call.keywords) or any(
        isinstance(a, ast.Starred) for a in call.args
    )


def parameters(scope: ast.AST) -> set[str]:
    """Return the names of a function's parameters."""
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    spec = scope.args
    arguments = [
        *spec.posonlyargs,
        *spec.args,
        *spec.kwonlyargs,
        *(a for a in (spec.vararg, spec.kwarg) if a),
    ]
    return {argument.arg for argument in arguments}


def inside(node: ast.AST, *, functions: bool = False) -> Iterator[ast.AST]:
    """Yield a node and its descendants in the order of the text, by default not inner functions."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        # A function that is defined here is not called here.
        if current is not node and not functions and isinstance(current, _SCOPES):
            continue
        stack.extend(reversed(list(ast.iter_child_nodes(current))))


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text as a set, for readable tables of names."""
    return frozenset(text.split())
