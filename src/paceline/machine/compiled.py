"""Keep our hooks out of torch.compile: none of them is traced, breaks a graph or makes Dynamo warn.

Dynamo reaches a hook in two ways. It inlines the function into the code that it traces: a hook
therefore calls ``torch.compiler.is_dynamo_compiling()`` first and returns at once. Or it compiles
the function as a separate frame, when a graph break calls into it: ``left_alone`` prevents that.
``not_traced`` is for replacements of torch functions that Dynamo never traces, where a graph breaks
anyway. ``not_compiled`` is for functions that Dynamo would compile again and again. ``uncounted``
keeps a replacement out of warnings. This module does not import Dynamo, which would add a second to
the start of each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])


def left_alone(function: _Function) -> _Function:
    """Return a function whose own frame torch.compile leaves alone; its calls are not affected."""
    return _skipped(function, "DEFAULT")


def not_compiled(function: _Function) -> _Function:
    """Return a function that runs as plain Python, with all that it calls, between two graphs."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable does
    return _skipped(function, "SKIP")


def _skipped(function: _Function, calls: str) -> _Function:
    """Return a function that Dynamo skips; ``calls`` is what it does with those that it calls."""
    import torch

    frames = getattr(torch._C._dynamo, "eval_frame", None)
    code = getattr(function, "__code__", None)  # a method has that of its function
    try:
        action = frames._FrameAction  # type: ignore[union-attr]
        strategy = frames._FrameExecStrategy(action.SKIP, getattr(action, calls))  # type: ignore[union-attr]
        frames.set_code_exec_strategy(code, strategy)  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        pass  # another version of torch: the frame is compiled, with the same result
    return function


def not_traced(function: _Function) -> _Function:
    """Return a replacement of a torch function that Dynamo, as the original, does not trace."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable does
    return left_alone(uncounted(function))


def uncounted(function: _Function) -> _Function:
    """Return a replacement whose frame warnings skip: a ``stacklevel`` names who called it.

    They skip frames of the import system, which they know by these two words in the file's name.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        name = f"{code.co_filename} (importlib _bootstrap)"
        function.__code__ = code.replace(co_filename=name)
    return function
