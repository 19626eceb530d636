"""Prints the size of the house: lines a file, lines a function. Hints for the reader, not a gate."""

import ast
import statistics
from pathlib import Path

files = {path: path.read_text() for path in Path("src").rglob("*.py")}
functions = [
    (node.end_lineno - node.lineno + 1, f"{path}:{node.name}")
    for path, text in files.items()
    for node in ast.walk(ast.parse(text))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
]
lines = sorted(((text.count("\n"), str(path)) for path, text in files.items()), reverse=True)
median = statistics.median(count for count, _ in lines)
print(f"{len(files)} files, {sum(count for count, _ in lines)} lines, median {median:.0f}")
print("longest files:", ", ".join(f"{path} {count}" for count, path in lines[:3]))
print(f"{len(functions)} functions, median {statistics.median(count for count, _ in functions):.0f} lines")
print("longest functions:", ", ".join(f"{name} {count}" for count, name in sorted(functions, reverse=True)[:3]))
