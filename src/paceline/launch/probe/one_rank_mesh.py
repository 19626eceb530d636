"""Let a script whose mesh of ranks is written into it run on one rank, as the reference.

A mesh of 2 x 2 ranks becomes one of 1 x 1, and a group of some ranks that of this one.
"""

from __future__ import annotations

import functools
import math
from typing import Any


def allow() -> None:
    """Make meshes and groups fit a world of one rank."""
    from torch import distributed
    from torch.distributed import device_mesh, distributed_c10d

    create, new_group = device_mesh.init_device_mesh, distributed_c10d.new_group

    @functools.wraps(create)
    def fitted(device_type: str, mesh_shape: Any, *args: Any, **kwargs: Any) -> Any:
        shape = tuple(mesh_shape)
        return create(
            device_type, shape if math.prod(shape) == 1 else (1,) * len(shape), *args, **kwargs
        )

    @functools.wraps(new_group)
    def group_of_one(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new_group(None if ranks is None else [0], *args, **kwargs)

    names: dict[str, Any] = {"init_device_mesh": fitted, "new_group": group_of_one}
    for module in (distributed, device_mesh, distributed_c10d):
        for name, function in names.items():
            if hasattr(module, name):
                setattr(module, name, function)
