"""Find the names of parameters, and those that are shards, without access to the model."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")


def held_by(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups of an optimizer, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def names_of(parameters: Sequence[torch.Tensor]) -> list[str]:
    """Return the names of parameters in their model, without the prefixes of wrappers around it."""
    names = {id(parameter): "" for parameter in parameters}
    for module in modules():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in names:
                own = without_wrappers(name)
                names[id(parameter)] = max(names[id(parameter)], own, key=_depth)
    return [
        names[id(parameter)] or f"parameter {place}" for place, parameter in enumerate(parameters)
    ]


def without_wrappers(name: str) -> str:
    """Return the name of a module or parameter without the prefixes of wrappers around it."""
    return functools.reduce(lambda text, word: text.replace(word, ""), _WRAPPERS, f"{name}.")[:-1]


def name_of(parameter: torch.Tensor) -> str:
    """Return the name of a parameter in its model, or of a variable of the script that is it."""
    name = names_of([parameter])[0]
    if not name.startswith("parameter "):
        return name
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if module not in ("paceline", "torch"):
            variables = {**frame.f_globals, **frame.f_locals}
            for variable, value in variables.items():
                if value is parameter:
                    return variable
        frame = frame.f_back
    return f"a tensor of shape {list(parameter.shape)}"


def _depth(name: str) -> tuple[int, str]:
    return name.count("."), name


def modules() -> Iterator[torch.nn.Module]:
    """Yield all living modules, identified by ``type``: ``__class__`` of an object can run code."""
    import torch

    for thing in gc.get_objects():
        if issubclass(type(thing), torch.nn.Module) and "_parameters" in thing.__dict__:
            yield thing


def in_shards() -> Iterator[torch.Tensor]:
    """Yield parameters that FSDP's first version keeps in shards, as plain tensors."""
    for module in modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            yield from module.parameters()
