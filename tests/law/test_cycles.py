"""No file imports, by whatever detour, a file that imports it: neither at the top nor inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from .test_layers import imports_of


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk through a file without what stands under ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        yield node
        yield from runtime_nodes(node)


def test_no_file_imports_one_that_imports_it(sources):
    modules = {source.module for source in sources}
    graph = {
        source.module: {name for _, name in imports_of(runtime_nodes(source.tree), modules)}
        & modules
        for source in sources
        if source.module != "paceline"  # its public names are loaded when they are asked for
    }
    cycle = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = error.args[1]
    assert cycle == []
