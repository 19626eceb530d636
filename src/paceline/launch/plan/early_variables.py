"""Find environment variables that are set too late: torch reads them only when it is imported.

A rank that is forked from a process with torch in memory cannot set them any more. If the script's
own text sets one, the ranks start with ``spawn`` (``set_in``). If a module that the script imports
does, the rank reports it (``Lateness``) and the launcher prints it (``LateVariables``). Standard
library only.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paceline.errors import Notice
from paceline.text.syntax import tree_of

# Families of variables that `import torch, torch._dynamo` reads (torch 2.13): those of math
# libraries, and torch's own. _LATE has the exceptions, which are read when they are needed: for a
# process group, or to load a model.
_EARLY = re.compile(
    r"(OMP|MKL|KMP|GOMP|GOTO|OPENBLAS|BLIS|MKLDNN|DNNL|ONEDNN|NPY|NUMPY|ATEN|KINETO|TRITON|AOTI?_?INDUCTOR|INDUCTOR)_\w+"
    r"|(PY)?TORCH[A-Z]*_\w+"
)
_LATE = re.compile(
    r"TORCH_NCCL_\w+|TORCH_FR_\w+|TORCH_?ELASTIC_\w+|TORCH_HOME|TORCH_EXTENSIONS_DIR|TORCH_CUDA_ARCH_LIST"
)
_MODULES_OF_OS = ("os", "_collections_abc", "collections.abc", "contextlib", "unittest.mock")
_EVERY_S = 1.0
_MOST = 3  # variables that a rank reports at most


def is_early(name: str) -> bool:
    """Return whether a variable is read while torch is imported."""
    return _EARLY.fullmatch(name) is not None and _LATE.fullmatch(name) is None


def set_in(source: str) -> list[str]:
    """Return the variables that a script sets or removes, if their names are string literals."""
    tree = tree_of(source)
    if tree is None:
        return []
    names = [name for node in ast.walk(tree) for name in _names_set_by(node)]
    return [
        name.value
        for name in names
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    ]


def _names_set_by(node: ast.AST) -> Sequence[ast.expr | None]:
    """Return the names of the variables that a statement or call sets or removes."""
    if isinstance(node, ast.Subscript):  # os.environ[...] = value, or del
        is_set = not isinstance(node.ctx, ast.Load) and _is_environ(node.value)
        return [node.slice] if is_set else []
    if isinstance(node, ast.AugAssign):  # os.environ |= {...}
        is_set = _is_environ(node.target)
        return node.value.keys if is_set and isinstance(node.value, ast.Dict) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _names_set_by_call(node, node.func)
    return []


def _names_set_by_call(call: ast.Call, method: ast.Attribute) -> Sequence[ast.expr | None]:
    if method.attr == "putenv":
        return call.args[:1]
    if method.attr in ("setdefault", "update", "pop") and _is_environ(method.value):
        keys = [key for arg in call.args if isinstance(arg, ast.Dict) for key in arg.keys]
        return [*keys, *call.args[:1], *(ast.Constant(word.arg) for word in call.keywords)]
    return []


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def line_of_setting(
    frame: types.FrameType | None,  # the frame in which a listener of ``paceline.env`` is called
    is_users: Callable[[str], bool],  # whether a file is the user's own
) -> str:
    """Return the line of the user's code that sets a variable, empty if it is not the user's."""
    while frame is not None:
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if module not in _MODULES_OF_OS and module != "paceline.env":
            return f"{file}:{frame.f_lineno}" if is_users(file) else ""
        frame = frame.f_back
    return ""


class Lateness:
    """In a forked rank: detect that the script sets such a variable, although torch is in memory.

    Under torchrun it would be in time, unless a module that the script has imported so far uses
    torch.
    """

    def __init__(
        self,
        # called with name, value and place, once for each variable
        report: Callable[[dict[str, str]], None],
        is_users: Callable[[str], bool],
    ) -> None:
        self._report, self._is_users = report, is_users
        self._rank = os.getpid()
        self._inherited = frozenset(sys.modules)
        self._reported: set[str] = set()

    def check(self, name: str, before: str | None, value: str) -> None:
        """Check a variable that is set, and report it if it is too late."""
        if not is_early(name) or value == before:
            return
        if name in self._reported or len(self._reported) == _MOST:
            return
        if os.getpid() != self._rank:  # a child may set it for a program that it executes
            return
        place = line_of_setting(sys._getframe(1), self._is_users)
        if place and not self._script_has_torch():
            self._reported.add(name)
            self._report({"name": name, "value": value, "place": place})

    def _script_has_torch(self) -> bool:
        fresh = (
            module for name, module in list(sys.modules.items()) if name not in self._inherited
        )
        return any(map(_holds_torch, (sys.modules["__main__"], *fresh)))


def _holds_torch(module: types.ModuleType) -> bool:
    values = list(getattr(module, "__dict__", {}).values())
    return any(_home_of(value).partition(".")[0] == "torch" for value in values)


def _home_of(value: Any) -> str:
    """Return the module that defines a value; runs no code of the value's own class."""
    if isinstance(value, types.ModuleType):
        home = value.__dict__.get("__name__")
    elif isinstance(value, type | types.FunctionType):
        home = value.__module__
    else:
        home = ""
    return home if isinstance(home, str) else ""


class LateVariables:
    """In the launcher: print what ranks report, once for each variable."""

    def __init__(
        self,
        # the reports of the ranks of this node so far
        entries: Callable[[], Iterator[dict[str, str]]],
        inform: Callable[[Notice], None],
    ) -> None:
        self._entries, self._inform = entries, inform
        self._printed: set[str] = set()
        self._next_s = 0.0

    def tick(self, *, at_once: bool = False) -> None:
        """Print new reports; read them at intervals, or at once if ``at_once``."""
        now_s = time.monotonic()
        if now_s < self._next_s and not at_once:
            return
        self._next_s = now_s + _EVERY_S
        for entry in self._entries():
            if entry["name"] not in self._printed:
                self._printed.add(entry["name"])
                self._inform(notice(**entry))


def notice(name: str, value: str, place: str) -> Notice:
    """Return the notice that a variable is set too late."""
    return Notice(
        f"{name}={value} is set in {_short(place)}, but torch has read {name} already",
        ("a rank is a fork of a process that has torch in memory: the value has no effect on it",),
        f"fix: export {name}={value}, or --start-method spawn",
    )


def _short(place: str) -> str:
    here = os.getcwd() + os.sep
    return place.removeprefix(here)
