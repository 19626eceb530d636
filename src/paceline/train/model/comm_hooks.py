"""A communication hook of DDP that sends half the bytes, with gloo and NCCL.

DDP compares a hook's annotations with the types themselves, so they must not be strings here (no
``from __future__ import annotations``).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]


def narrow_hook(dtype: torch.dtype) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """Return a communication hook that sends gradients as ``dtype``; its state is unused.

    It works like torch's ``fp16_compress_hook``. Torch's bf16 hook requires NCCL by name, although
    gloo reduces bfloat16 too.
    """

    def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        narrow = buffer.to(dtype).div_(dist.get_world_size())
        reduced: torch.futures.Future[Any] = dist.all_reduce(narrow, async_op=True).get_future()

        def write_back(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()  # raises the error of a failed reduction
            return buffer.copy_(narrow)

        return reduced.then(write_back)

    return hook
