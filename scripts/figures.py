"""Prints the size and shape of ``src``: hints for the reader, not a gate.

Rules. A package is a folder with modules; the modules at the top count as packages of their own. An
arrow is an import from one package to another, at the top of a file or inside a function, but not
for type checkers only. A file is flat in its folder. Cyclomatic complexity: 1, and 1 for each if,
loop, exception handler, conditional expression, comprehension, assertion, case, and further operand
of ``and`` and ``or``; nested functions count by themselves. Branches per code line: that number by
the lines of code (no comments, docstrings or blank lines), of functions with more than five of
them. Line lengths are those of lines that are not blank.

    python scripts/figures.py [FOLDER]

FOLDER is ``src`` by default. BEFORE has what the script prints for the ``src`` before the packages
were put in order (commit 400fa93).
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp)
BRANCHES += (ast.comprehension, ast.Assert, ast.match_case)
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
MANY_BRANCHES = 15

BEFORE = {
    "files": "285",
    "lines": "46,418",
    "lines of a file: median, p90, most": "141, 324, 497",
    "names at the top": "37",
    "packages, arrows between them": "42, 115",
    "files flat in one package, most": "59",
    "modules with exactly one importer": "137",
    "functions": "2,816",
    "lines of a function: median, p90, most": "8, 21, 84",
    "cyclomatic complexity: p90, most": "10, 34",
    "functions over 15": "51",
    "branches per code line: median, p90": "0.50, 0.86",
    "length of a line: p90": "98",
}


def figures(root: Path) -> Iterator[tuple[str, str]]:
    """Yield names and values of all figures of a folder."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    lines = [text.count("\n") for text in texts.values()]
    yield "files", f"{len(texts):,}"
    yield "lines", f"{sum(lines):,}"
    yield "lines of a file: median, p90, most", spread(lines)
    yield from graph_figures(root, texts)
    yield from function_figures(texts.values())
    lengths = [len(line) for text in texts.values() for line in text.splitlines() if line.strip()]
    yield "length of a line: p90", str(quantile(lengths))


def graph_figures(root: Path, texts: Mapping[Path, str]) -> Iterator[tuple[str, str]]:
    """Yield what the imports show."""
    paths = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in texts
    }
    imports = {
        module: set(imported(texts[path], paths)) - {module} for module, path in paths.items()
    }
    packages = {module: package(module, path) for module, path in paths.items()}
    arrows = {(packages[one], packages[other]) for one in imports for other in imports[one]}
    importers = Counter(other for one in imports for other in imports[one])
    yield (
        "names at the top",
        str(len({module.split(".")[1] for module in paths if "." in module}) + 1),
    )
    yield (
        "packages, arrows between them",
        f"{len(set(packages.values()))}, {sum(one != other for one, other in arrows)}",
    )
    yield (
        "files flat in one package, most",
        str(max(Counter(path.parent for path in texts).values())),
    )
    yield "modules with exactly one importer", str(sum(importers[module] == 1 for module in paths))


def package(module: str, path: Path) -> str:
    """Return the package of a module; a module at the top is its own."""
    parent = module.rpartition(".")[0]
    return module if path.name == "__init__.py" or "." not in parent else parent


def imported(text: str, modules: Iterable[str]) -> Iterator[str]:
    """Yield the modules among ``modules`` that a file imports."""
    known = set(modules)
    for node in runtime_nodes(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from {inner if inner in known else node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a file but for what stands under ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from runtime_nodes(node)


def function_figures(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what functions are like."""
    lengths, complexities, densities = [], [], []
    for text in texts:
        tree = ast.parse(text)
        code = code_lines(text, tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)):
            body = range(function.lineno, (function.end_lineno or 0) + 1)
            complexity = 1 + count_branches(function)
            num_code = len(code & set(body))
            lengths.append(len(body))
            complexities.append(complexity)
            if num_code > 5:
                densities.append(complexity / num_code)
    yield "functions", f"{len(lengths):,}"
    yield "lines of a function: median, p90, most", spread(lengths)
    yield "cyclomatic complexity: p90, most", f"{quantile(complexities)}, {max(complexities)}"
    yield (
        f"functions over {MANY_BRANCHES}",
        str(sum(number > MANY_BRANCHES for number in complexities)),
    )
    yield (
        "branches per code line: median, p90",
        f"{statistics.median(densities):.2f}, {quantile(densities):.2f}",
    )


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


def code_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the numbers of lines that hold code."""
    numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            numbers.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if (
            isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module))
            and ast.get_docstring(node) is not None
        ):
            docstring = node.body[0]
            numbers -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return numbers


def quantile(values: list[float] | list[int], share: float = 0.9) -> float:
    """Return the value that a share of all values is below."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def spread(values: list[int]) -> str:
    """Return median, 90 % quantile and maximum."""
    return f"{statistics.median(values):.0f}, {quantile(values)}, {max(values)}"


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "src")
    print(f"{'':40}{'now':>16}{'400fa93':>16}")
    for name, value in figures(folder):
        print(f"{name:40}{value:>16}{BEFORE[name]:>16}")
