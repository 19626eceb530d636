"""Give DistributedDataParallel settings that a script does not set, to measure what they are worth.

``paceline bench --settings`` sets ``PACELINE_TRY_DDP`` for a trial. Frameworks construct torch's
class too, so the settings reach their scripts as well; ``applied`` shows whether they did.

DDP compares a hook's annotations with the types themselves, so they must not be strings here (no
``from __future__ import annotations``).
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from paceline import env
from paceline.machine.compiled import uncounted

HOOK, AUTOCAST = "hook", "autocast"  # all other settings are arguments of the constructor
_applied: list[str] = []


def applied() -> list[str]:
    """Return the names of the settings that a model of this rank was given."""
    return sorted(set(_applied))


def install() -> None:
    """Apply the settings of ``PACELINE_TRY_DDP`` to every model that is constructed from now on."""
    text = env.read(env.TRY_DDP)
    if text is None:
        return
    from torch.nn.parallel import DistributedDataParallel

    settings: dict[str, Any] = json.loads(text)
    kind: Any = DistributedDataParallel
    kind.__init__ = _constructor(kind.__init__, settings)
    if AUTOCAST in settings:
        kind.forward = _forward(kind.forward, settings[AUTOCAST])


def _constructor(construct: Callable[..., None], settings: Mapping[str, Any]) -> Any:
    """Return a replacement of the constructor."""
    signature = inspect.signature(construct)
    arguments = {name: value for name, value in settings.items() if name in signature.parameters}

    @functools.wraps(construct)
    def constructed(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(arguments)
        construct(*bound.args, **bound.kwargs)
        if HOOK in settings:
            args[0].register_comm_hook(None, _hook(settings[HOOK]))
        _applied.extend(settings)

    return uncounted(constructed)


def _hook(dtype_name: str) -> Any:
    """Return a communication hook that sends gradients in a type, on gloo and on NCCL.

    It works like torch's ``fp16_compress_hook``. Torch's bf16 hook requires NCCL by name, although
    gloo reduces bfloat16 too.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import GradBucket  # type: ignore[attr-defined]

    dtype: torch.dtype = getattr(torch, dtype_name)

    def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        narrow = buffer.to(dtype).div_(dist.get_world_size())
        reduced: torch.futures.Future[Any] = dist.all_reduce(narrow, async_op=True).get_future()

        def write_back(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()  # raises the error of a failed reduction
            return buffer.copy_(narrow)

        return reduced.then(write_back)

    return hook


def _forward(run: Callable[..., Any], dtype: str) -> Any:
    """Return a replacement of ``forward`` that computes in ``dtype`` where that is usual."""
    import torch

    @functools.wraps(run)
    def in_autocast(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device_type, dtype=getattr(torch, dtype)):
            return run(self, *args, **kwargs)

    return in_autocast
