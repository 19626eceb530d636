"""Work around a deadlock of gloo: keep a rank's default process group until the process ends.

torch 2.13 can deadlock when the last reference to a gloo process group is dropped after a backward
pass of DDP: its destructor joins gloo's threads while it holds the interpreter lock, and one of
them waits for that lock to free memory of autograd. That happens at the end of a script that
destroys its group inside a function and returns from it: the work is done, but the rank never ends.
``destroy_process_group`` still closes the group's connections; only the object stays.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import Any

from paceline.machine.references import keep_until_exit


def install() -> None:
    """Never free the default group after it is created."""
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    create = getattr(c10d, "_new_process_group_helper", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    signature = inspect.signature(create)

    @functools.wraps(create)
    def create_and_keep(*args: Any, **kwargs: Any) -> Any:
        created = create(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        if arguments.get("group_desc") == "default_pg" and str(arguments.get("backend")) != "nccl":
            keep_until_exit(created[0])
        return created

    c10d._new_process_group_helper = create_and_keep
