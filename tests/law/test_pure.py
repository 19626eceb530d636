"""A module whose docstring says "Pure" takes and returns data: it touches no file, no process and no clock."""

from __future__ import annotations

import ast
import re

# Calls that look at, or change, more than their arguments.
MODULES = {
    "subprocess",
    "socket",
    "shutil",
    "tempfile",
    "threading",
    "select",
    "mmap",
    "fcntl",
    "urllib",
    "http",
}
OF_OS = {"path", "fspath", "sep", "linesep", "pathsep", "PathLike", "curdir", "pardir"}
OF_OS_PATH = {
    "basename",
    "dirname",
    "join",
    "split",
    "splitext",
    "isabs",
    "normpath",
    "commonpath",
    "commonprefix",
}
OF_TIME = {"strptime", "strftime", "gmtime", "struct_time"}
OF_PATHS = {
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "exists",
    "is_file",
    "is_dir",
    "stat",
    "iterdir",
}
OF_PATHS |= {
    "glob",
    "rglob",
    "mkdir",
    "unlink",
    "rename",
    "resolve",
    "absolute",
    "touch",
    "expanduser",
    "open",
}
BUILTINS = {"open", "print", "input"}
# Where the docstring itself says which function is not.
EXCEPT = {
    ("launch/monitor/position.py", "os.path.relpath"),  # shows a path from the working folder
}


def impurities(source):
    """``(line, name)`` of what a pure module must not use."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [str(node.module)]
            )
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
            if is_impure(name):
                yield node.lineno, name


def is_impure(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    if not owner:
        return last in BUILTINS
    if owner == "os.path":
        return last not in OF_OS_PATH
    if owner in ("os", "time"):
        return last not in (OF_OS if owner == "os" else OF_TIME)
    return last in OF_PATHS


def test_a_module_that_says_pure_touches_nothing(sources):
    assert [
        f"{source.path}:{line} {name}"
        for source in sources
        if re.search(r"\bPure(?! part)\b(?!, but)", ast.get_docstring(source.tree) or "")
        for line, name in impurities(source)
        if (source.path, name) not in EXCEPT
    ] == []


def test_what_is_looked_for_is_found():
    assert is_impure("os.listdir")
    assert is_impure("folder.read_text")
    assert is_impure("open")
    assert is_impure("time.monotonic")
    assert not is_impure("os.path.basename")
