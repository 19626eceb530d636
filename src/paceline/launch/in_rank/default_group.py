"""Watch a rank's default process groups: count them, and keep each until the process ends.

They are counted because the store outlives a group, and still holds the addresses at which the
ranks of that group met. Each group needs keys of its own (``store_token_check``).

They are kept because torch 2.13 can deadlock when the last reference to a gloo process group is
dropped after a backward pass of DDP: its destructor joins gloo's threads while it holds the
interpreter lock, and one of them waits for that lock to free memory of autograd. That happens at
the end of a script that destroys its group inside a function and returns from it: the work is done,
but the rank never ends. ``destroy_process_group`` still closes the group's connections; only the
object stays.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

from paceline.machine.references import keep_until_exit

_num_made: Counter[tuple[int, int]] = Counter()  # by rank and size of the group


def install(made: Callable[[], None]) -> None:
    """Count default groups, call ``made`` for each, and never free them after they are created."""
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    create = getattr(c10d, "_new_process_group_helper", None)
    if create is None or hasattr(create, "__wrapped__"):
        return

    signature = inspect.signature(create)

    @functools.wraps(create)
    def create_and_keep(*args: Any, **kwargs: Any) -> Any:
        created = create(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        if arguments.get("group_desc") != "default_pg":
            return created
        made()
        _num_made[arguments["group_rank"], arguments["group_size"]] += 1
        if str(arguments.get("backend")) != "nccl":
            keep_until_exit(created[0])
        return created

    c10d._new_process_group_helper = create_and_keep


def num_ended(rank: int, world_size: int) -> int:
    """Return how many default groups this process has had, and ended, as this rank of so many.

    A group that could not be made is not counted, so a rank that tries again finds the others. Nor
    is the group that exists: RPC meets beside it, maybe with ranks that are not in it.
    """
    c10d: Any = import_module("torch.distributed.distributed_c10d")
    this = (rank, world_size)
    is_alive = c10d.is_initialized() and (c10d.get_rank(), c10d.get_world_size()) == this
    return _num_made[this] - int(is_alive)
