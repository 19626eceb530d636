"""Read the files to check, and decide whether each is Python, a job script or neither."""

from __future__ import annotations

import ast
import os
import re
import stat
import sys
from dataclasses import dataclass

from paceline.errors import Finding
from paceline.text.syntax import tree_of

MOST_BYTES = 2 * 1024 * 1024
# Larger than any handwritten job script; the limit bounds the time of a check to seconds.
MOST_SHELL = 128 * 1024

_SHELLS = re.compile(r"#!.*\b(bash|sh|zsh|ksh|dash)\b")
_JOB_SUFFIXES = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".slm", ".srun", ".batch")
# Documents may contain a script but are not one.
_DOCUMENTS = (".md", ".rst", ".ipynb", ".html", ".json", ".tex")
_DIRECTIVE = re.compile(r"^#SBATCH\b", re.MULTILINE)
_OTHER_SCHEDULERS = {
    "PBS": re.compile(r"^#PBS\s+-", re.MULTILINE),
    "SGE": re.compile(r"^#\$\s+-", re.MULTILINE),
    "LSF": re.compile(r"^#BSUB\s+-", re.MULTILINE),
}


@dataclass(frozen=True)
class SourceFile:
    """A file that was read."""

    name: str  # its path as typed
    text: str = ""  # its content
    finding: Finding | None = None  # why it could not be read, or None


def read(name: str) -> SourceFile:
    """Read a file, or standard input for ``-``; a file that cannot be read gets a finding."""
    try:
        if name == "-":
            return _fitting(_from_stdin())
        status = os.stat(name)  # before opening, which would block on a pipe
        if stat.S_ISDIR(status.st_mode):
            return _refused(name, "is a folder", fix=f"paceline lint {name}/*.sbatch {name}/*.py")
        if not stat.S_ISREG(status.st_mode):
            return _refused(name, "is not a regular file")
        if status.st_size > MOST_BYTES:
            return _refused(name, f"has {status.st_size / 2**20:,.0f} MB: too large for a script")
        with open(name, "rb") as file:
            source = _decoded(name, file.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return _refused(name, f"cannot be read: {reason}")
    return _fitting(source)


def _from_stdin() -> SourceFile:
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        return _refused("-", f"has more than {MOST_BYTES // 2**20} MB: too large for a script")
    return _decoded("-", data)


def _fitting(source: SourceFile) -> SourceFile:
    if len(source.text) > MOST_SHELL and is_job(source):
        return _refused(
            source.name, f"has {len(source.text) / 1024:,.0f} kB: too large for a job script"
        )
    return source


def _decoded(name: str, data: bytes) -> SourceFile:
    if not data.strip() and not name.endswith(".py"):  # an empty module is valid
        return _refused(name, "is empty")
    if b"\0" in data:
        return _refused(name, "is a binary file")
    try:
        return SourceFile(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        pass
    # Latin-1 decodes any bytes; a real text in it has few control characters
    text = data.decode("latin-1")
    odd = sum(
        1
        for char in text[:10_000]
        if (char < " " and char not in "\t\n\r\f\x1b") or "\x7f" <= char < "\xa0"
    )
    is_binary = odd > len(text[:10_000]) / 50
    return _refused(name, "is a binary file") if is_binary else SourceFile(name, text)


def _refused(name: str, what: str, *, fix: str = "") -> SourceFile:
    shown_name = name.encode("utf-8", "replace").decode()
    finding = Finding(
        "input-unreadable",
        f"{shown_name} {what}",
        where=shown_name,
        fix=fix or "paceline lint FILE...  (job scripts and Python files)",
    )
    return SourceFile(shown_name, finding=finding)


def is_python(source: SourceFile) -> bool:
    """Return whether a file is a Python script."""
    if _says_python(source):
        return True
    if _suffix(source) in _DOCUMENTS or is_job(source):
        return False
    tree = tree_of(source.text)
    if tree is None:
        return False
    # tables, lists and plain words can be valid Python; a script also has imports or definitions
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, definitions) for node in tree.body)


def is_job(source: SourceFile) -> bool:
    """Return whether a file is a shell script, for Slurm or not."""
    suffix = _suffix(source)
    if _says_python(source) or suffix in _DOCUMENTS:
        return False
    evidence = (
        _SHELLS.match(source.text) or suffix in _JOB_SUFFIXES or _DIRECTIVE.search(source.text)
    )
    return bool(evidence) or bool(_scheduler(source))


def _says_python(source: SourceFile) -> bool:
    first = source.text.split("\n", 1)[0]
    return _suffix(source) == ".py" or (first.startswith("#!") and "python" in first)


def _suffix(source: SourceFile) -> str:
    return os.path.splitext(source.name)[1].lower()


def _scheduler(source: SourceFile) -> str:
    """Return another scheduler than Slurm whose directives a script has, empty if there is none."""
    if _DIRECTIVE.search(source.text):
        return ""
    return next(
        (name for name, pattern in _OTHER_SCHEDULERS.items() if pattern.search(source.text)), ""
    )


def not_judged(source: SourceFile) -> Finding | None:
    """Return a hint if a file, or its directives of another scheduler, cannot be checked."""
    if not source.text.strip() and os.path.basename(source.name) != "__init__.py":
        return Finding(
            "input-unreadable", f"{source.name} is empty", where=source.name, severity="hint"
        )
    if is_python(source):
        return None
    scheduler = _scheduler(source)
    if is_job(source) and not scheduler:
        return None
    if is_job(source):
        what = (
            f"{source.name} has directives of {scheduler}; only those of Slurm are known, and these"
            " are not judged"
        )
        fix = "compare by hand what the job asks for with what the launcher starts"
    else:
        what = f"{source.name} is neither an sbatch script nor Python: not judged"
        fix = "paceline lint FILE...  (job scripts and Python files)"
    if _suffix(source) == ".ipynb":
        fix = f"jupyter nbconvert --to script {source.name}, and lint what it writes"
    return Finding("input-unreadable", what, where=source.name, fix=fix, severity="hint")
