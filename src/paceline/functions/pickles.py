"""Store functions, arguments, results and exceptions in the run folder, by cloudpickle.

A file has a line of JSON, which is read first, and then the pickle: what another version of Python
has pickled by value may crash this one. cloudpickle takes functions of scripts, notebooks and other
functions by value, and those of installed modules by name.

Unpickling runs code: a run folder is trusted as a script is.
"""

from __future__ import annotations

import errno
import inspect
import io
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodDescriptorType
from typing import IO, Any

import cloudpickle

from paceline.errors import Finding, RunError, SetupError, UsageError, option_invalid
from paceline.rundir.files import SECRET_MODE, open_file, whole

VERSION = 1
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_MOST_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class Packed:
    """An object as it is written to a file."""

    content: bytes  # the header and the pickle

    def write(self, path: Path) -> None:
        """Write the file whole, for this user alone: arguments may be secret.

        Raises OSError if it cannot be written.
        """
        with whole(path, mode=SECRET_MODE) as file:
            file.write(self.content)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles an exception so that it is made again without its constructor.

    ``BaseException.__reduce__`` calls the class with ``args``. These are what the constructor has
    passed on: usually one message, where the class itself takes two arguments.
    """

    def reducer_override(self, value: Any) -> Any:
        is_error = isinstance(value, BaseException)
        if not is_error or not isinstance(type(value).__reduce__, MethodDescriptorType):
            return super().reducer_override(value)  # not an exception, or one with its own way
        reduced = tuple(value.__reduce__())
        return _remade, reduced[:2], *reduced[2:]


def _remade(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error: BaseException = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)  # type: ignore[misc]  # an OSError gets its errno there
    return error


def _pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def pack_function(function: Any) -> Packed:
    """Pickle a function; raise UsageError if it is not callable, or cannot be pickled."""
    name = name_of(function)
    if not callable(function):
        what = f"a function is submitted, and this is a value of the type {name}"
        fix = "paceline.submit(function, argument)   (the function itself, not a call of it)"
        raise option_invalid(what, where="the first argument", fix=fix)
    return _packed(function, what=f"the function {name}", culprits=lambda: _parts(function))


def pack_arguments(arguments: Sequence[Any]) -> Packed:
    """Pickle the arguments of a call; raise UsageError if one of them cannot be pickled."""
    named = [(f"argument {place}", value) for place, value in enumerate(arguments, start=1)]
    return _packed(tuple(arguments), what="the arguments", culprits=lambda: iter(named))


def _packed(value: Any, *, what: str, culprits: Callable[[], Iterator[tuple[str, Any]]]) -> Packed:
    try:
        return Packed(_header() + _pickled(value))
    except Exception as error:  # a __reduce__ of the user may raise anything
        parts = _unpicklable(culprits())
        raise UsageError(_not_picklable(what, error, parts)) from None


def name_of(function: Any) -> str:
    """Return the name of a function for people and for the job."""
    inner = getattr(function, "func", function)  # functools.partial
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return "lambda" if name == "<lambda>" else name


def _parts(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Return what a function uses from outside of it, by name."""
    yield from ((f"argument {name}", value) for name, value in _bound(function))
    try:
        used = inspect.getclosurevars(getattr(function, "func", function))
    except (TypeError, ValueError):
        return  # not written in Python
    yield from ((f"its variable {name}", value) for name, value in used.nonlocals.items())
    yield from ((f"the global variable {name}", value) for name, value in used.globals.items())


def _bound(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    arguments = [(str(place), value) for place, value in enumerate(getattr(function, "args", ()))]
    return [*arguments, *getattr(function, "keywords", {}).items()]


def _unpicklable(parts: Iterator[tuple[str, Any]]) -> tuple[str, ...]:
    """Return those parts that cannot be pickled, in words."""
    lines = []
    for name, value in parts:
        try:
            cloudpickle.dumps(value)
        except Exception:
            lines.append(f"{name} is a {type(value).__module__}.{type(value).__qualname__}")
    return tuple(lines)


def _not_picklable(what: str, error: Exception, parts: tuple[str, ...]) -> Finding:
    first_line = next(iter(str(error).splitlines()), "")
    return Finding(
        "not-picklable",
        f"{what} cannot be pickled, and so cannot get from one process to another",
        where=parts[0] if parts else "",
        evidence=(*parts[1:], f"{type(error).__name__}: {first_line}"),
        fix="make locks, open files, connections and generators inside of the function",
    )


def write_result(path: Path, value: Any) -> None:
    """Write what a function has returned; a reader sees all of it or nothing."""
    num_written = 0
    try:
        with whole(path) as file:
            num_written = _dump(file, value)
    except OSError as error:
        raise SetupError(_unwritable(path, error, num_written)) from None


def _dump(file: IO[bytes], value: Any) -> int:
    file.write(_header())
    try:
        _Pickler(file).dump(value)
    except OSError:
        raise  # of the disk, and not of the value
    except Exception as error:
        named = [("the result", value)]
        finding = _not_picklable("what the function has returned", error, _unpicklable(iter(named)))
        raise RunError(finding) from None
    return file.tell()


def _unwritable(path: Path, error: OSError, num_written: int) -> Finding:
    size = f" ({num_written:,} bytes)" if num_written else ""
    if error.errno not in _FULL:
        return Finding(
            "folder-not-writable",
            f"the result{size} cannot be written: {error.strerror}",
            where=str(path.parent),
            fix="another run_dir=",
        )
    return Finding(
        "disk-full",
        f"the disk has no space for what the function has returned{size}: {error.strerror}",
        where=str(path.parent),
        why="nothing of it is kept, so that nobody takes a part of it for the result",
        fix="free some (df -h shows where), give another run_dir=, or return a path",
    )


def write_exception(path: Path, error: BaseException) -> None:
    """Write the exception of a function, as far as it can be pickled and written."""
    try:
        packed = Packed(_header() + _pickled(error))
        packed.write(path)
    except Exception:
        return  # its text is in the error file of the rank


def load(path: Path, *, extend_path: bool = False) -> Any:
    """Return the object in a file.

    ``extend_path`` also searches modules where the process that wrote the file has searched them.
    Raises SetupError if another version of Python has written it, OSError if it cannot be read,
    ValueError if it is not such a file, and what unpickling raises, such as ModuleNotFoundError.
    """
    with open_file(path) as file:
        header = _read_header(file)
        if header.get("python") != _PYTHON:
            raise SetupError(_other_python(path, str(header.get("python"))))
        if extend_path:
            folders = [str(folder) for folder in header.get("path", ())]
            sys.path += [folder for folder in folders if folder not in sys.path]
        return pickle.load(file)


def _header() -> bytes:
    # An empty entry is the current folder, which is another one where the job runs.
    folders = [folder or os.getcwd() for folder in sys.path]
    header = {"version": VERSION, "python": _PYTHON, "path": folders}
    return json.dumps(header).encode("utf-8") + b"\n"


def _read_header(file: IO[bytes]) -> dict[str, Any]:
    try:
        header = json.loads(file.readline(_MOST_HEADER_BYTES))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("version") != VERSION:
        raise ValueError(f"not a pickled call of version {VERSION}")
    return header


def _other_python(path: Path, theirs: str) -> Finding:
    return Finding(
        "wrong-python-env",
        f"{path.name} was pickled by Python {theirs}, and this is Python {_PYTHON}",
        where=str(path.parent),
        why="functions are pickled as byte code, which differs between versions",
        fix="the same Python where jobs are submitted and where they run: [setup] conda, venv",
    )
