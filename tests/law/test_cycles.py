"""No file imports, by whatever detour, a file that imports it: not at the top, in functions, or for types only."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

from .test_layers import imports_of


def test_no_file_imports_one_that_imports_it(sources):
    modules = {source.module for source in sources}
    graph = {
        source.module: {name for _, name in imports_of(ast.walk(source.tree), modules)} & modules
        for source in sources
        if source.module != "paceline"  # its public names are loaded when they are asked for
    }
    cycle = []
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle = error.args[1]
    assert cycle == []
