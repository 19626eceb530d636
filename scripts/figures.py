"""Prints the size and shape of ``src``, and on request the places behind each figure.

A hint for the reader, not a gate: what is a law stands in ``tests/law``. Definitions:

- A package is a folder with modules. An import counts at the top of a file or inside a function; one
  for type checkers only counts for circles alone. A circle is a largest set of files that all reach
  each other.
- A private function is short if its body, without the docstring, has at most 3 lines; it is called
  once if its name is used once in the tree.
- A record is a dataclass, a ``NamedTuple`` or a ``TypedDict``; it is made in one place if calls of
  its name stand in at most one place of the tree.
- A class name has several meanings if two classes have it.
- Branches of a function: 1, and 1 for each if, loop, exception handler, conditional expression,
  comprehension, assertion, case, and further operand of ``and`` and ``or``; nested functions count by
  themselves. Branches a body line: that number by the lines of the body without its docstring, of
  functions with more than five of them.
- A package has a map if its docstring names more than a quarter of its modules (the law asks for all).
- Comments are lines with a comment, without those that only describe a field of a record beside it.

    python scripts/figures.py [FOLDER] [--package NAME]

FOLDER is ``src`` by default. With ``--package`` (``launch/run``, say), the places in this package are
listed. BEFORE has what the script prints for commit 935a67b.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

T = TypeVar("T", bound=ast.AST)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp)
BRANCHES += (ast.comprehension, ast.Assert, ast.match_case)
SHORT_BODY = 3
LARGE_PACKAGE = 1500

BEFORE = {
    "files": "696",
    "lines": "113,111",
    "lines of a file: median, p90, most": "140, 338, 478",
    "functions": "7,003",
    "lines of a function: median, p90, most": "8, 21, 106",
    "private, body of at most 3 lines, called once": "313",
    "modules with one importer": "261 of 642",
    "class names with several meanings": "70",
    "records made in one place": "138",
    "branches a body line: median, p90": "0.43, 0.83",
    "packages of four or more modules without a map": "34 of 49",
    "circles of files": "3",
}


@dataclass(frozen=True)
class Place:
    """A line of a file, and what is to be seen there."""

    path: Path
    line: int
    what: str


@dataclass(frozen=True)
class Figure:
    """A figure: its name, its value as text, and the places that it counts."""

    name: str
    value: str
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, eq=False)
class Module:
    """A file of the tree."""

    path: Path
    name: str  # with dots; a package has its own name, without ``__init__``
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        """Whether this is the ``__init__`` of a package."""
        return self.path.name == "__init__.py"

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the file."""
        return list(ast.walk(self.tree))

    def of_type(self, *types: type[T]) -> list[T]:
        """Return the nodes of some types."""
        return [node for node in self.nodes if isinstance(node, types)]

    def place(self, node: ast.stmt, what: str) -> Place:
        """Return the place of a node."""
        return Place(self.path, node.lineno, what)


def modules(root: Path) -> list[Module]:
    """Read all files of a folder."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        found.append(Module(path, name, text, ast.parse(text)))
    return found


def figures(tree: list[Module]) -> Iterator[Figure]:
    """Yield all figures of a tree."""
    lines = [module.text.count("\n") for module in tree]
    yield Figure("files", f"{len(tree):,}")
    yield Figure("lines", f"{sum(lines):,}")
    yield Figure("lines of a file: median, p90, most", spread(lines))
    functions = [function for module in tree for function in module.of_type(*FUNCTIONS)]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in functions]
    yield Figure("functions", f"{len(functions):,}")
    yield Figure("lines of a function: median, p90, most", spread(lengths))
    yield counted("private, body of at most 3 lines, called once", called_once(tree))
    importable = sum(not module.is_package for module in tree)
    lone = tuple(one_importer(tree))
    yield Figure("modules with one importer", f"{len(lone)} of {importable}", lone)
    yield repeated_class_names(tree)
    yield counted("records made in one place", records_made_once(tree))
    yield branch_density(tree)
    yield maps(tree)
    yield counted("circles of files", circles(tree))
    yield from comment_shares(tree)


def counted(name: str, places: Iterator[Place]) -> Figure:
    """Return a figure that is the number of its places."""
    found = tuple(places)
    return Figure(name, f"{len(found):,}", found)


def called_once(tree: list[Module]) -> Iterator[Place]:
    """Yield short private functions whose name is used once."""
    uses: Counter[str] = Counter()
    for module in tree:
        uses.update(node.id for node in module.of_type(ast.Name))
        uses.update(node.attr for node in module.of_type(ast.Attribute))
        uses.update(node.name.rpartition(".")[2] for node in module.of_type(ast.alias))
    for module in tree:
        for function in module.of_type(*FUNCTIONS):
            private = function.name.startswith("_") and not function.name.startswith("__")
            if private and uses[function.name] == 1 and 0 < body_length(function) <= SHORT_BODY:
                yield module.place(function, function.name)


def body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return the statements of a function after its docstring."""
    return function.body[ast.get_docstring(function) is not None :]


def body_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a body; 0 for a docstring alone."""
    statements = body(function)
    if not statements:
        return 0
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1


def imported(module: Module, known: set[str], *, for_types: bool) -> set[str]:
    """Return the modules that a file imports, with or without those for type checkers only."""
    found: set[str] = set()
    for node in module.nodes if for_types else runtime_nodes(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return (found & known) - {module.name}


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a file but for what stands under ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from runtime_nodes(node)


def one_importer(tree: list[Module]) -> Iterator[Place]:
    """Yield the modules that exactly one other module imports."""
    known = {module.name for module in tree}
    importers: defaultdict[str, list[str]] = defaultdict(list)
    for module in tree:
        for other in imported(module, known, for_types=True):
            importers[other].append(module.name)
    for module in tree:
        if not module.is_package and len(importers[module.name]) == 1:
            yield Place(module.path, 1, f"only {importers[module.name][0]} imports it")


def repeated_class_names(tree: list[Module]) -> Figure:
    """Count the names that several classes have."""
    classes: defaultdict[str, list[Place]] = defaultdict(list)
    for module in tree:
        for node in module.of_type(ast.ClassDef):
            classes[node.name].append(module.place(node, node.name))
    several = [places for places in classes.values() if len(places) > 1]
    places = tuple(place for group in several for place in group)
    return Figure("class names with several meanings", str(len(several)), places)


def is_record(node: ast.ClassDef) -> bool:
    """Return whether a class is a dataclass, a ``NamedTuple`` or a ``TypedDict``."""
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return bool(bases & {"NamedTuple", "TypedDict"}) or any("dataclass" in d for d in decorators)


def records_made_once(tree: list[Module]) -> Iterator[Place]:
    """Yield the records that are made in at most one place."""
    calls: Counter[str] = Counter()
    for module in tree:
        for call in module.of_type(ast.Call):
            calls[ast.unparse(call.func).rpartition(".")[2]] += 1
    for module in tree:
        for node in module.of_type(ast.ClassDef):
            if is_record(node) and calls[node.name] <= 1:
                yield module.place(node, node.name)


def branch_density(tree: list[Module]) -> Figure:
    """Return how many branches a line of a function's body has; the places are the densest."""
    places: list[tuple[float, Place]] = []
    for module in tree:
        for function in module.of_type(*FUNCTIONS):
            length = body_length(function)
            if length > 5:
                density = (1 + count_branches(function)) / length
                where = module.place(function, f"{density:.2f} {function.name}")
                places.append((density, where))
    densities = [density for density, _ in places]
    limit = quantile(densities)
    dense = tuple(place for density, place in places if density >= limit)
    value = f"{statistics.median(densities):.2f}, {limit:.2f}"
    return Figure("branches a body line: median, p90", value, dense)


def count_branches(function: ast.AST) -> int:
    """Return the branches of a function without those of functions in it."""
    number = 0
    for node in ast.iter_child_nodes(function):
        if isinstance(node, FUNCTIONS):
            continue
        number += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            number += len(node.values) - 1
        number += count_branches(node)
    return number


def maps(tree: list[Module]) -> Figure:
    """Count the packages whose docstring does not name their modules."""
    inner: defaultdict[Path, list[str]] = defaultdict(list)
    for module in tree:
        if not module.is_package:
            inner[module.path.parent].append(module.path.stem)
    packages = [m for m in tree if m.is_package and len(inner[m.path.parent]) >= 4]
    without = []
    for module in packages:
        names = inner[module.path.parent]
        docstring = set(re.findall(r"\w+", ast.get_docstring(module.tree) or ""))
        missing = [name for name in names if name not in docstring]
        if len(missing) >= 0.75 * len(names):
            without.append(Place(module.path, 1, f"no {', '.join(missing)}"))
    name = "packages of four or more modules without a map"
    return Figure(name, f"{len(without)} of {len(packages)}", tuple(without))


def circles(tree: list[Module]) -> Iterator[Place]:
    """Yield one place for each set of files that all reach each other."""
    known = {module.name: module for module in tree}
    reached = {name: imported(module, set(known), for_types=True) for name, module in known.items()}
    # Until nothing is added: what is reached from a file that is reached.
    changed = True
    while changed:
        changed = False
        for name, others in reached.items():
            wider = others.union(*(reached[other] for other in others))
            changed |= wider != others
            reached[name] = wider
    circle_of = {
        name: frozenset(other for other in others if name in reached[other])
        for name, others in reached.items()
        if name in others
    }
    for circle in sorted(set(circle_of.values()), key=sorted):
        yield Place(known[min(circle)].path, 1, ", ".join(sorted(circle)))


def comment_shares(tree: list[Module]) -> Iterator[Figure]:
    """Yield the share of comments of each large package."""
    comments: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for module in tree:
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        lines[package] += module.text.count("\n")
        comments[package] += len(comment_lines(module))
    for package, number in sorted(lines.items()):
        if number > LARGE_PACKAGE:
            share = f"{100 * comments[package] / number:.1f} %"
            yield Figure(f"comments in {package} ({number:,} lines)", share)


def comment_lines(module: Module) -> set[int]:
    """Return the numbers of lines with a comment that does not only describe a field beside it."""
    fields = {
        line
        for node in module.of_type(ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        for line in range(statement.lineno, (statement.end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return {token.start[0] for token in tokens if token.type == tokenize.COMMENT} - fields


def quantile(values: list[float] | list[int], share: float = 0.9) -> float:
    """Return the value that a share of all values is below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def spread(values: list[int]) -> str:
    """Return median, 90 % quantile and maximum."""
    return f"{statistics.median(values):.0f}, {quantile(values)}, {max(values)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default="src")
    parser.add_argument("--package", default="", help="list the places in this folder of paceline")
    asked = parser.parse_args()
    root = Path(asked.folder)
    print(f"{'':56}{'now':>16}{'935a67b':>16}")
    for figure in figures(modules(root)):
        print(f"{figure.name:56}{figure.value:>16}{BEFORE.get(figure.name, ''):>16}")
        for place in figure.places if asked.package else ():
            if place.path.is_relative_to(root / "paceline" / asked.package):
                print(f"    {place.path}:{place.line}  {place.what}")
