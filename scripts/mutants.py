"""Changes one place of ``src`` at a time and asks the tests whether they see it.

    python scripts/mutants.py LOG [--tree CLONE] [--count 150] [--seed 15]

CLONE is a clone that this script may change (each file is put back after its mutant); the environment
of this Python runs its tests. A function is drawn by the seed from all that have a place to change
and whose module is imported by quick tests of ``tests/unit`` that pass in under 60 s; then one of its places is
drawn. A mutant is killed if these tests fail or take longer. LOG gets a line for each mutant; the end
of the output is the share killed by package.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 60
# What ``make test`` runs, and those that only CI runs.
QUICK = re.search(r"^SHORT := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1]
SWAPPED = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: ">=",
    ast.LtE: ">",
    ast.Gt: "<=",
    ast.GtE: "<",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*"}


@dataclass(frozen=True)
class Mutant:
    """A change of one expression or statement, on one line or several."""

    line: int  # from 1
    column: int
    end_line: int
    end_column: int
    text: str  # instead of it


def at(node: ast.expr | ast.stmt, text: str) -> Mutant:
    """Return the mutant that replaces a node."""
    return Mutant(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)


def mutants(function: ast.AST) -> Iterator[Mutant]:
    """Yield all changes of a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield at(node, f"(({left}) {SWAPPED[type(node.ops[0])]} ({right}))")
        elif isinstance(node, ast.BoolOp):
            other = " or " if isinstance(node.op, ast.And) else " and "
            yield at(node, f"({other.join(f'({ast.unparse(value)})' for value in node.values)})")
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            yield at(node, f"(({left}) {ARITHMETIC[type(node.op)]} ({right}))")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield at(node, f"bool({ast.unparse(node.operand)})")
        elif isinstance(node, ast.IfExp):
            body, other = ast.unparse(node.body), ast.unparse(node.orelse)
            yield at(node, f"(({other}) if ({ast.unparse(node.test)}) else ({body}))")
        elif isinstance(node, ast.Return) and node.value and not is_none(node.value):
            yield at(node, "return None")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield at(node, repr(not node.value) if node.value in (0, 1) else repr(node.value + 1))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield at(node, "pass")


def is_none(node: ast.expr) -> bool:
    """Return whether an expression is ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def applied(mutant: Mutant, text: str) -> str:
    """Return the text of a file with a mutant."""
    lines = text.encode().splitlines(keepends=True)
    head = lines[mutant.line - 1][: mutant.column]
    tail = lines[mutant.end_line - 1][mutant.end_column :]
    changed = [head + mutant.text.encode() + tail]
    return b"".join(lines[: mutant.line - 1] + changed + lines[mutant.end_line :]).decode()


def tests_of(module: str, texts: dict[Path, str]) -> tuple[str, ...]:
    """Return the test files that import a module."""
    parent, _, name = module.rpartition(".")
    pattern = re.compile(
        rf"\b{re.escape(module)}\b|from {re.escape(parent)} import [^\n(]*\b{name}\b"
    )
    return tuple(str(path) for path, text in texts.items() if pattern.search(text))


def survives(tree: Path, tests: tuple[str, ...]) -> bool:
    """Return whether tests pass in time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", QUICK]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [*command, *tests],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            return running.wait(LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            running.terminate()  # pytest ends what its tests have started
            return False


def drawn(tree: Path, seed: int) -> Iterator[tuple[Path, str, Mutant, tuple[str, ...]]]:
    """Yield mutants in a random order: file, function, change, tests."""
    random_numbers = random.Random(seed)
    texts = {
        path.relative_to(tree): path.read_text(encoding="utf-8")
        for path in sorted((tree / "tests" / "unit").rglob("test_*.py"))
    }
    functions = []
    for path in sorted((tree / "src").rglob("*.py")):
        module = ".".join(path.relative_to(tree / "src").with_suffix("").parts)
        tests = tests_of(module.removesuffix(".__init__"), texts)
        if not tests:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            changes = list(mutants(node)) if isinstance(node, ast.FunctionDef) else []
            if changes:
                functions.append((path, node.name, changes, tests))
    random_numbers.shuffle(functions)
    for path, name, changes, tests in functions:
        yield path, name, random_numbers.choice(changes), tests


def package(path: Path, tree: Path) -> str:
    """Return the first two folders below ``paceline``."""
    return "/".join(path.relative_to(tree / "src" / "paceline").parent.parts[:2]) or "top"


def main(log: Path, tree: Path, count: int, seed: int) -> None:
    """Try mutants until there are enough, and print the shares killed."""
    healthy: dict[tuple[str, ...], bool] = {}
    tried: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    for path, name, mutant, tests in drawn(tree, seed):
        if tried.total() == count:
            break
        if tests not in healthy:
            healthy[tests] = survives(tree, tests)
        if not healthy[tests]:
            continue
        original = path.read_text(encoding="utf-8")
        path.write_text(applied(mutant, original), encoding="utf-8")
        try:
            survived = survives(tree, tests)
        finally:
            path.write_text(original, encoding="utf-8")
        where = package(path, tree)
        tried[where] += 1
        killed[where] += not survived
        result = "survived" if survived else "killed"
        place = f"{path.relative_to(tree)}:{mutant.line} {name}"
        with log.open("a", encoding="utf-8") as file:
            print(f"{result}\t{place}\t{' '.join(mutant.text.split())}", file=file)
    for where, number in sorted(tried.items()):
        print(f"{where:30}{killed[where]:>4} of {number}")
    print(f"{'all':30}{killed.total():>4} of {tried.total()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=15)
    asked = parser.parse_args()
    main(asked.log.resolve(), asked.tree.resolve(), asked.count, asked.seed)
