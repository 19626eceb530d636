"""The script: is there one to run, is it Python, and what does its text say?

A hand that looks before anything is started, so that a wrong name costs a tenth of a second and one message
instead of a traceback from every rank.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import env
from paceline.errors import Finding, RunError, UsageError, closest
from paceline.launch.plan.options import Options

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec


def read(options: Options) -> str:
    """Return the script's text, after checking that there is one to run; empty where none can be read.

    Raises:
        UsageError: There is no such script, it is a folder, or it is not Python.
        RunError: It has a syntax error.
    """
    if options.no_python:
        _require_program(options.script)
        return ""
    if options.script == "-" or env.read(env.PYTHON_EXEC):
        return ""  # Python reads it from standard input, or another Python has its own modules and syntax
    if options.module:
        return _module_source(options.script)
    path = Path(options.script)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise _no_script(f"{path} is a folder, not a script", fix=f"paceline run {path / 'train.py'}")
    if not path.exists():
        raise _no_script(f"there is no file {path}", fix=_nearby(path))
    if path.suffix == ".ipynb":
        raise _not_python(path, f"{path} is a notebook", fix=f"jupyter nbconvert --to script {path}")
    if path.is_dir():
        path = path / "__main__.py"
    if _is_compiled(path) or not path.is_file():
        return ""  # what is read from a pipe is gone
    return _check_syntax(path)


def _module_source(name: str) -> str:
    """Look a module up without importing it: importing its package could run anything."""
    from importlib.machinery import PathFinder

    top = name.split(".", maxsplit=1)[0]
    spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path]) or _find_elsewhere(top)
    if spec is None:
        raise UsageError(
            Finding(
                "module-not-found",
                f"there is no module {top} in this folder or in {sys.prefix}",
                where="command line",
                fix="a file is run without -m: paceline run script.py",
            )
        )
    origin = spec.origin if spec and "." not in name else None
    try:
        return Path(origin).read_text(encoding="utf-8") if origin else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _find_elsewhere(top: str) -> ModuleSpec | None:
    """Ask the finders of others: packages that are installed in editable mode have one."""
    from importlib.util import find_spec

    try:
        return find_spec(top)
    except ValueError:  # it is imported and has no spec
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

    return path.suffix == ".pyc" or (path.suffix not in (".py", ".pyw") and zipfile.is_zipfile(path))


def _check_syntax(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _no_script(f"{path} cannot be read: {error.strerror}", fix=f"ls -l {path}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will warn, under the filters that the script sets
            compile(content, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if path.suffix not in (".py", ".pyw") or b"\0" in content:
            fix = f"paceline run --no-python {path}   (to execute it as a program)"
            raise _not_python(path, f"{path} is not Python: {error}", fix=fix) from None
        place = f"{path}:{getattr(error, 'lineno', 0) or 0}"
        shown = (getattr(error, "text", "") or "").strip()
        raise RunError(
            Finding(
                "user-exception",
                f"the script has a syntax error: {getattr(error, 'msg', error)}",
                where=place,
                evidence=(shown,) if shown else (),
                fix=f"correct {place}; nothing was started",
            )
        ) from None
    return content.decode("utf-8", errors="replace")


def _not_python(path: Path, what: str, *, fix: str) -> UsageError:
    return UsageError(Finding("script-not-python", what, where=str(path), fix=fix))


def _no_script(what: str, *, fix: str) -> UsageError:
    return UsageError(Finding("script-missing", what, where="command line", fix=fix))


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = closest(path.name, [entry.name for entry in folder.glob("*.py")])
    return f"did you mean {folder / near}?" if near else "give the path of the script, from this folder or absolute"
