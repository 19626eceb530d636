"""Keeps the default process group of a rank alive until the process ends, where gloo is part of it.

torch 2.13 can deadlock when the last reference to a gloo process group is dropped after a backward pass of DDP:
its destructor joins gloo's threads while it holds the interpreter's lock, and one of them waits for that lock to
free what autograd has stored. That is what happens at the end of a script which destroys its group inside a
function and then returns from it: the work is done and the rank never ends. The group's connections are closed
by ``destroy_process_group`` all the same; only the object stays.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
from importlib import import_module
from typing import Any


def install() -> None:
    """Make the default group immortal when it is created."""
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    create = getattr(c10d, "_new_process_group_helper", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    signature = inspect.signature(create)

    @functools.wraps(create)
    def create_and_keep(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        asked = signature.bind(*args, **kwargs).arguments
        if asked.get("group_desc") == "default_pg" and str(asked.get("backend")) != "nccl":
            # Not a reference from a module: those are dropped when the interpreter ends, which is too early.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made[0]))
        return made

    c10d._new_process_group_helper = create_and_keep
