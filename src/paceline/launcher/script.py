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

from paceline.errors import Finding, RunError, UsageError, closest
from paceline.launcher.options import Options


def read(options: Options) -> str:
    """Return the script's text, after checking that there is one to run; empty where none can be read.

    Raises:
        UsageError: There is no such script, it is a folder, or it is not Python.
        RunError: It has a syntax error.
    """
    if options.module:
        return _module_source(options.script)
    if options.no_python:
        _require_program(options.script)
        return ""
    path = Path(options.script)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise _no_script(f"{path} is a folder, not a script", fix=f"paceline run {path / 'train.py'}")
    if not path.exists():
        raise _no_script(f"there is no file {path}", fix=_nearby(path))
    if path.suffix not in (".py", ".pyw", ""):
        return _other_suffix(path)
    if path.is_dir():
        path = path / "__main__.py"
    return _check_syntax(path)


def _module_source(name: str) -> str:
    """Look a module up without importing it: importing its package could run anything."""
    from importlib.machinery import PathFinder

    top = name.split(".", maxsplit=1)[0]
    spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    if spec is None and top not in sys.builtin_module_names:
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


def _require_program(name: str) -> None:
    if shutil.which(name) is None:
        exists = Path(name).exists()
        raise _no_script(
            f"{name} cannot be executed" if exists else f"there is no program {name}",
            fix=f"chmod +x {name}" if exists else "give its path, such as ./program",
        )


def _other_suffix(path: Path) -> str:
    import zipfile

    if path.suffix == ".pyc" or zipfile.is_zipfile(path):
        return ""
    raise UsageError(
        Finding(
            "script-not-python",
            f"{path} does not look like Python",
            where=str(path),
            fix=f"paceline run --no-python {path}   (to execute it as a program)",
        )
    )


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
            raise UsageError(
                Finding(
                    "script-not-python",
                    f"{path} is not Python: {error}",
                    where=str(path),
                    fix=f"paceline run --no-python {path}   (to execute it as a program)",
                )
            ) from None
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


def _no_script(what: str, *, fix: str) -> UsageError:
    return UsageError(Finding("script-missing", what, where="command line", fix=fix))


def _nearby(path: Path) -> str:
    folder = path.parent if path.parent.is_dir() else Path()
    near = closest(path.name, [entry.name for entry in folder.glob("*.py")])
    return f"did you mean {folder / near}?" if near else "give the path of the script, from this folder or absolute"
