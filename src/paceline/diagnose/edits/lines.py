"""The edit for each finding of lint that has one. Pure: text in, text out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from paceline.diagnose.lint.ignore import line_of
from paceline.errors import Finding
from paceline.text.syntax import tree_of

# Returns the text without the fault; None where it is not certain what to write.
Edit = Callable[[str, Finding], str | None]


def edited(text: str, finding: Finding) -> str | None:
    """Return the text of a file without a finding; None where it is not certain what to write.

    The caller has to check that the finding is gone, and that there is no new one.
    """
    edit = EDITS.get(finding.name)
    return None if edit is None else edit(text, finding)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends, as Python's parser and diff count them."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _set_epoch(text: str, finding: Finding) -> str | None:
    """Call set_epoch in the only loop over epochs that follows a sampler in its block."""
    tree, line = tree_of(text), line_of(finding)
    if tree is None:
        return None
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [scope for scope in (tree, *functions) if _holds(scope, line)]
    scope = max(around, key=_first)
    loops = [loop for loop in ast.walk(scope) if isinstance(loop, ast.For) and _is_of_epochs(loop)]
    name = _only_name(scope, line)
    if len(loops) != 1 or not name or not _is_below(scope, line, loops[0]):
        return None
    first = loops[0].body[0]
    call = f"{' ' * first.col_offset}{name}.set_epoch({getattr(loops[0].target, 'id', '')})"
    begins = min([first.lineno, *(node.lineno for node in getattr(first, "decorator_list", ()))])
    return _with_line(text, begins, call) if begins > loops[0].lineno else None


def _only_name(scope: ast.AST, line: int) -> str:
    """Return the name to which a line assigns a new sampler; empty if anything else is assigned."""
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign) or node.lineno != line:
            continue
        target = node.targets[0]
        called = getattr(node.value, "func", None)
        is_sampler = getattr(called, "attr", getattr(called, "id", "")) == "DistributedSampler"
        if not is_sampler or not isinstance(target, ast.Name):
            return ""
        names = [part for part in ast.walk(scope) if isinstance(part, ast.Name)]
        same = [name for name in names if name.id == target.id]
        assigned = [name for name in same if isinstance(name.ctx, ast.Store)]
        return target.id if len(assigned) == 1 else ""
    return ""


def _is_below(scope: ast.AST, line: int, loop: ast.For) -> bool:
    """Return whether a loop follows a statement in the block of that statement."""
    for node in ast.walk(scope):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if not isinstance(block, list) or line not in [part.lineno for part in block]:
                continue
            after = [part for part in block if part.lineno > line]
            return any(loop in ast.walk(part) for part in after)
    return False


def _holds(scope: ast.AST, line: int) -> bool:
    return isinstance(scope, ast.Module) or _first(scope) <= line <= getattr(scope, "end_lineno", 0)


def _first(scope: ast.AST) -> int:
    return getattr(scope, "lineno", 0)


def _is_of_epochs(loop: ast.For) -> bool:
    return isinstance(loop.target, ast.Name) and "epoch" in loop.target.id.lower()


def _map_location(text: str, finding: Finding) -> str | None:
    """Load to the CPU: load_state_dict copies the values to where the parameters are."""
    return _with_argument(text, line_of(finding), "load", 'map_location="cpu"')


def _exist_ok(text: str, finding: Finding) -> str | None:
    return _with_argument(text, line_of(finding), "makedirs", "exist_ok=True")


def _with_argument(text: str, line: int, name: str, argument: str) -> str | None:
    """Add an argument to the only call of a name that begins in a line."""
    tree = tree_of(text)
    calls = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Call)
        and node.lineno == line
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == name
    ]
    if len(calls) != 1 or calls[0].end_lineno is None or calls[0].end_col_offset is None:
        return None
    lines = lines_of(text)
    # The column counts bytes.
    last = lines[calls[0].end_lineno - 1].encode()
    before = last[: calls[0].end_col_offset - 1].decode()
    whole = "".join([*lines[: calls[0].end_lineno - 1], before]).rstrip()
    comma = "" if whole.endswith(("(", ",")) else ","
    blank = "" if whole.endswith("(") else " "
    after = last[calls[0].end_col_offset - 1 :].decode()
    return "".join([whole, comma, blank, argument, after, *lines[calls[0].end_lineno :]])


def _export(text: str, finding: Finding) -> str | None:
    """Export a variable in the only line that sets it."""
    match = re.match(r"export (?P<name>[A-Za-z_]\w*)", finding.fix)
    if match is None:
        return None
    setting = re.compile(rf"^([ \t]*)(?={match['name']}=)", re.MULTILINE)
    return setting.sub(r"\1export ", text) if len(setting.findall(text)) == 1 else None


def _cpus_per_task(text: str, finding: Finding) -> str | None:
    """Ask for the CPUs: in place of the number that is asked for, or below the other options."""
    match = re.fullmatch(r"#SBATCH --cpus-per-task=\d+", finding.fix)
    if match is None:
        return None
    option = re.compile(r"^#SBATCH[ \t]+(?:--cpus-per-task[= ]|-c *)\d+", re.MULTILINE)
    if option.search(text):
        return option.sub(match[0], text) if len(option.findall(text)) == 1 else None
    options = [
        number for number, line in enumerate(lines_of(text), 1) if line.startswith("#SBATCH ")
    ]
    return _with_line(text, options[-1] + 1, match[0]) if options else None


def _with_line(text: str, number: int, line: str) -> str:
    """Insert a line, so that it has a number."""
    lines = lines_of(text)
    end = "\r\n" if "\r\n" in text else "\n"
    return "".join([*lines[: number - 1], line, end, *lines[number - 1 :]])


EDITS: Mapping[str, Edit] = {
    "set-epoch-missing": _set_epoch,
    "map-location-missing": _map_location,
    "folder-race": _exist_ok,
    "unset-variable": _export,
    "cpus-per-task-missing": _cpus_per_task,
    "cpus-too-few": _cpus_per_task,
}
