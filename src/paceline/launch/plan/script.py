"""Check the script before the start: it must exist and be valid Python; return its text.

So a wrong name costs a tenth of a second and one message, instead of a traceback from every rank.
This module collects.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import env
from paceline.errors import RunError, UsageError, closest
from paceline.launch.plan.options import Options

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def read(options: Options) -> str:
    """Check that the script can run, and return its text; empty if it has none that can be read.

    Raises UsageError if the script does not exist, is a folder, or is not Python; RunError if the
    script has a syntax error.
    """
    if options.no_python:
        _require_program(options.script)
        return ""
    if options.script == "-" or env.read(env.PYTHON_EXEC):
        return ""  # read from standard input, or by another Python with its own modules and syntax
    if options.module:
        return _module_source(options.script)
    path = Path(options.script)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise _no_script(
            f"{path} is a folder, not a script", fix=f"paceline run {path / 'train.py'}"
        )
    if not path.exists():
        raise _no_script(f"there is no file {path}", fix=_nearby(path))
    if path.suffix == ".ipynb":
        raise _not_python(
            path, f"{path} is a notebook", fix=f"jupyter nbconvert --to script {path}"
        )
    if path.is_dir():
        path = path / "__main__.py"
    if _is_compiled(path) or not path.is_file():
        return ""  # a pipe can be read only once
    return _check_syntax(path)


def _module_source(name: str) -> str:
    """Return the source of a module without importing it, since importing its package runs code."""
    from importlib.machinery import PathFinder

    top = name.split(".", maxsplit=1)[0]
    spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path]) or _find_elsewhere(top)
    if spec is None:
        raise UsageError.of(
            "module-not-found",
            f"there is no module {top} in this folder or in {sys.prefix}",
            where="command line",
            fix="a file is run without -m: paceline run script.py",
        )
    origin = spec.origin if spec and "." not in name else None
    try:
        return Path(origin).read_text(encoding="utf-8") if origin else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _find_elsewhere(top: str) -> ModuleSpec | None:
    """Find a module with the other finders: packages in editable mode install one."""
    from importlib.util import find_spec

    try:
        return find_spec(top)
    except ValueError:  # it is already imported, without a spec
        return None


def _require_program(name: str) -> None:
    if shutil.which(name) is None:
        exists = Path(name).exists()
        raise _no_script(
            f"{name} cannot be executed" if exists else f"there is no program {name}",
            fix=f"chmod +x {name}" if exists else "give its path, such as ./program",
        )


def _is_compiled(path: Path) -> bool:
    """Return whether a file has no text to read: an archive or bytecode."""
    import zipfile

    return path.suffix == ".pyc" or (
        path.suffix not in (".py", ".pyw") and zipfile.is_zipfile(path)
    )


def _check_syntax(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _no_script(f"{path} cannot be read: {error.strerror}", fix=f"ls -l {path}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will warn, with the script's own filters
            compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if path.suffix not in (".py", ".pyw") or b"\0" in content:
            fix = f"paceline run --no-python {path}   (to execute it as a program)"
            raise _not_python(path, f"{path} is not Python: {error}", fix=fix) from None
        place = f"{path}:{getattr(error, 'lineno', 0) or 0}"
        line = (getattr(error, "text", "") or "").strip()
        raise RunError.of(
            "user-exception",
            f"the script has a syntax error: {getattr(error, 'msg', error)}",
            where=place,
            evidence=(line,) if line else (),
            fix=f"correct {place}; nothing was started",
        ) from None
    return content.decode("utf-8", errors="replace")


def _not_python(path: Path, what: str, *, fix: str) -> UsageError:
    return UsageError.of("script-not-python", what, where=str(path), fix=fix)


def _no_script(what: str, *, fix: str) -> UsageError:
    return UsageError.of("script-missing", what, where="command line", fix=fix)


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = closest(path.name, [entry.name for entry in folder.glob("*.py")])
    return (
        f"did you mean {folder / near}?"
        if near
        else "give the path of the script, from this folder or absolute"
    )
