"""Check a training script: parse it once, run each check, sort the findings by line."""

from __future__ import annotations

import ast
import re
import warnings

from paceline.diagnose.lint.python.script import Script
from paceline.errors import Finding

_PYTHON_2 = re.compile(
    r"Missing parentheses in call to|multiple exception types must be|leading zeros in decimal"
)
_NOTEBOOK = re.compile(r"^\s*[%!]\w")
# Syntax of later Python than that which runs lint; the job's Python may read it.
_NEWER = re.compile(
    r"^\s*(type\s+\w+|def\s+\w+\[|class\s+\w+\[|except\s*\*|(async\s+)?with\s*\()|\bf[\"']"
)
_SHEBANG = re.compile(r"#!.*\bpython")
_WORTH_READING = re.compile(r"torch|lightning|accelerate|deepspeed|horovod|transformers|paceline")
# Longer than any handwritten script; parsing more takes seconds and gigabytes.
_MAX_CHARACTERS = 4_000_000


def read(source: str, name: str) -> Script | Finding | None:
    """Parse a file; a finding if it is not Python, None if it is too deep, long or irrelevant."""
    if len(source) > _MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the user's strings, which is not our subject
            tree = ast.parse(source)
    except SyntaxError as error:
        return _unreadable(source, name, error)
    except ValueError as error:  # null bytes, in Python up to 3.11
        return _unreadable(source, name, SyntaxError(str(error), (name, 1, 0, "")))
    except (RecursionError, MemoryError):  # nested deeper than Python itself can compile
        return None
    return Script.of(tree, source, name) if _WORTH_READING.search(source) else None


def _unreadable(source: str, name: str, error: SyntaxError) -> Finding:
    lines = source.splitlines()
    number = min(max(error.lineno or 1, 1), max(len(lines), 1))
    line = lines[number - 1].strip()[:160] if lines else ""
    message = (error.msg or "invalid syntax").rstrip(".")
    is_script = name.endswith((".py", ".pyw")) or bool(_SHEBANG.match(source))
    severity = "error" if is_script and not _NEWER.search(line) else "warning"
    return Finding(
        "script-syntax-error",
        f"Python cannot read this file: {message}",
        where=f"{name}:{number}",
        evidence=(line,) if line else (),
        why=_reason(message, line),
        fix=f"python -m py_compile {name}",
        severity=severity,
    )


def _reason(message: str, line: str) -> str:
    if _PYTHON_2.search(message):
        return "this is Python 2, which no PyTorch that is still maintained runs on"
    if _NOTEBOOK.search(line):
        return "lines with % or ! belong to a notebook; a script cannot have them"
    return "every rank would end at once with this error"


def judge(source: str, name: str) -> list[Finding]:
    """Return the findings of a training script by line; a single one if it is not Python."""
    return examine(source, name)[0]


def examine(source: str, name: str) -> tuple[list[Finding], Script | None]:
    """Return the findings of a training script, and its index; None if it is no training script."""
    script = read(source, name)
    if isinstance(script, Finding):
        return [script], None
    return ([], None) if script is None else (_findings(script), script)


def _findings(script: Script) -> list[Finding]:
    from paceline.diagnose.lint.python.checks import CHECKS  # a script for one process needs none

    # Several paths may lead to the same finding at one line, with different texts; one is enough.
    findings = {
        (finding.name, finding.where): finding for check in CHECKS for finding in check(script)
    }
    return sorted(findings.values(), key=lambda finding: int(finding.where.rpartition(":")[2]))
