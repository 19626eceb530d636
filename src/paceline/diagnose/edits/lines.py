"""The edit for each finding of lint that has one. Pure: text in, text out."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from paceline.diagnose.lint.ignore import line_of
from paceline.diagnose.lint.python.script import Script, inside
from paceline.errors import Finding
from paceline.text.syntax import dotted


def edited(text: str, finding: Finding, script: Script | None) -> str | None:
    """Return the text of a file without a finding; None where it is not certain what to write.

    ``script`` is the index of a Python file. The caller has to check that the finding is gone, and
    that none is added.
    """
    if script is not None and finding.name in _OF_PYTHON:
        return _OF_PYTHON[finding.name](text, script, line_of(finding))
    return _OF_JOBS[finding.name](text, finding.fix) if finding.name in _OF_JOBS else None


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends, as Python's parser and diff count them."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _set_epoch(text: str, script: Script, line: int) -> str | None:
    """Call set_epoch in the only loop over epochs that follows a sampler in its block."""
    samplers = _calls(script, "DistributedSampler", line)
    statement = script.parents[samplers[0]] if len(samplers) == 1 else None
    if not isinstance(statement, ast.Assign):
        return None
    target = statement.targets[0]
    if not script.is_plain(target, statement):
        return None
    name, scope = dotted(target), script.scope(statement)
    loops = [node for node in inside(scope) if isinstance(node, ast.For) and _is_of_epochs(node)]
    if len(loops) != 1 or len(script.assigned(name, statement)) != 1:
        return None
    first = loops[0].body[0]
    call = f"{' ' * first.col_offset}{name}.set_epoch({dotted(loops[0].target)})"
    begins = min([first.lineno, *(node.lineno for node in getattr(first, "decorator_list", ()))])
    has_own_line = begins > loops[0].lineno and _follows(script, loops[0], statement)
    return _with_line(text, begins, call) if has_own_line else None


def _follows(script: Script, loop: ast.For, statement: ast.Assign) -> bool:
    """Return whether a loop is below a statement in the block of that statement."""
    for _, block in ast.iter_fields(script.parents[statement]):
        if isinstance(block, list) and statement in block:
            after = block[block.index(statement) + 1 :]
            return any(node in after for node in (loop, *script.up(loop)))
    return False


def _is_of_epochs(loop: ast.For) -> bool:
    return isinstance(loop.target, ast.Name) and "epoch" in loop.target.id.lower()


def _map_location(text: str, script: Script, line: int) -> str | None:
    """Load to the CPU: load_state_dict copies the values to where the parameters are."""
    return _with_argument(text, _calls(script, "load", line), 'map_location="cpu"')


def _exist_ok(text: str, script: Script, line: int) -> str | None:
    return _with_argument(text, _calls(script, "makedirs", line), "exist_ok=True")


def _calls(script: Script, name: str, line: int) -> list[ast.Call]:
    return [call for call in script.calls_of(name) if call.lineno == line]


def _with_argument(text: str, calls: list[ast.Call], argument: str) -> str | None:
    """Add an argument to a call, if it is the only one."""
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


def _export(text: str, fix: str) -> str | None:
    """Export a variable in the only line that sets it."""
    match = re.match(r"export (?P<name>[A-Za-z_]\w*)", fix)
    if match is None:
        return None
    setting = re.compile(rf"^([ \t]*)(?={match['name']}=)", re.MULTILINE)
    return setting.sub(r"\1export ", text) if len(setting.findall(text)) == 1 else None


def _cpus_per_task(text: str, fix: str) -> str | None:
    """Ask for the CPUs: in place of the number that is asked for, or below the other options."""
    match = re.fullmatch(r"#SBATCH --cpus-per-task=\d+", fix)
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


_OF_PYTHON: Mapping[str, Callable[[str, Script, int], str | None]] = {
    "set-epoch-missing": _set_epoch,
    "map-location-missing": _map_location,
    "folder-race": _exist_ok,
}
_OF_JOBS: Mapping[str, Callable[[str, str], str | None]] = {
    "unset-variable": _export,
    "cpus-per-task-missing": _cpus_per_task,
    "cpus-too-few": _cpus_per_task,
}
