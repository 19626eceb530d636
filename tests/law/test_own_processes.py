"""Paceline's own processes are started in one way, which runs nothing of the current folder."""

import ast
from itertools import pairwise

STARTER = "machine/own_process.py"
# Lists that start nothing of ours.
KNOWN = [
    ("launch/in_rank/rank_entry.py", "[sys.executable, '-u', "),  # sys.orig_argv of a rank
    ("launch/in_rank/rank_entry.py", "[task.python, '-u', *(['-m'] "),  # the user's script
    ("cli/translate/translate.py", "[_word(launcher, True), '-m', "),  # a line for people
]


def commands(source):
    """The lists in a file that begin with this interpreter, or have a module of ours after ``-m``."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
            words = [ast.unparse(element) for element in node.elts]
            is_ours = any(a == "'-m'" and b.startswith("'paceline") for a, b in pairwise(words))
            if words[0] in ("sys.executable", "task.python") or is_ours:
                yield ast.unparse(node)


def test_one_module_starts_processes_of_our_own(sources):
    found = [(source.path, line) for source in sources for line in commands(source)]
    assert [
        (path, line)
        for path, line in found
        if path != STARTER
        and not any(path == place and line.startswith(first) for place, first in KNOWN)
    ] == []
