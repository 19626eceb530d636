"""A reader finds a module by the first lines of its package."""

import ast
import re
from collections import defaultdict
from pathlib import PurePath

MANY = 4  # a smaller package is read as quickly as its map


def test_a_package_of_several_modules_opens_with_a_map_of_them(sources):
    docstrings, modules = {}, defaultdict(set)
    for source in sources:
        path = PurePath(source.path)
        if path.name == "__init__.py":
            docstrings[path.parent] = ast.get_docstring(source.tree) or ""
        elif path.name != "__main__.py":
            modules[path.parent].add(path.stem)
    missing = {
        str(package): sorted(names - set(re.findall(r"\w+", docstrings[package])))
        for package, names in modules.items()
        if len(names) >= MANY
    }
    assert {package: names for package, names in missing.items() if names} == {}
