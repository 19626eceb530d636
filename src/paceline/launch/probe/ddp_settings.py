"""Give DistributedDataParallel settings that a script does not set, to measure what they are worth.

``paceline bench --settings`` sets ``PACELINE_TRY_DDP`` for a trial. Frameworks construct torch's
class too, so the settings reach their scripts as well; ``applied`` shows whether they did.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from paceline import env

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

    return constructed


def _hook(dtype: str) -> Any:
    """Return a communication hook that sends gradients as ``dtype``, a name of torch's."""
    import torch

    from paceline.train.model import comm_hooks

    return comm_hooks.narrow_hook(getattr(torch, dtype))


def _forward(run: Callable[..., Any], dtype: str) -> Any:
    """Return a replacement of ``forward`` that computes in ``dtype`` where that is usual."""
    import torch

    @functools.wraps(run)
    def in_autocast(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device_type, dtype=getattr(torch, dtype)):
            return run(self, *args, **kwargs)

    return in_autocast
