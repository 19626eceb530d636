"""Keeps our hooks out of torch.compile: none of them is traced, breaks a graph or makes Dynamo warn.

Dynamo meets a hook in two ways. It inlines the function into what it traces: a hook therefore asks
``torch.compiler.is_compiling()`` first and leaves at once. Or it compiles the function as a frame of its own, when
compiled code has been left at a graph break and calls into it: ``left_alone`` rules that out. ``not_traced`` is for
what stands in the place of a function of torch's that Dynamo never traces: a graph breaks there with us or without us.
Dynamo itself is never imported here, which would take a second of each rank's start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])


def left_alone(function: _Function) -> _Function:
    """Return a function of ours, whose own frame torch.compile does not compile; what it calls is as it was."""
    import torch

    frames = getattr(torch._C._dynamo, "eval_frame", None)
    code = getattr(function, "__code__", None)
    try:
        action = frames._FrameAction  # type: ignore[union-attr]
        strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)  # type: ignore[union-attr]
        frames.set_code_exec_strategy(code, strategy)  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        pass  # another version of torch: the frame is compiled, and does the same
    return function


def not_traced(function: _Function) -> _Function:
    """Return a function of ours that Dynamo treats as the one of torch's that it stands for: as not to be traced."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]  # what torch.compiler.disable sets
    return left_alone(function)
