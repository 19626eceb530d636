"""Find the names of parameters, and those that are shards, without access to the model."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence

import torch

_WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")


def names_of(parameters: Sequence[torch.Tensor]) -> list[str]:
    """Return the names of parameters in their model, without the prefixes of wrappers around it."""
    names = {id(parameter): "" for parameter in parameters}
    for module in modules():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in names:
                own = functools.reduce(
                    lambda text, wrapper: text.replace(wrapper, ""), _WRAPPERS, name
                )
                names[id(parameter)] = max(names[id(parameter)], own, key=_depth)
    return [
        names[id(parameter)] or f"parameter {place}" for place, parameter in enumerate(parameters)
    ]


def _depth(name: str) -> tuple[int, str]:
    return name.count("."), name


def modules() -> Iterator[torch.nn.Module]:
    """Yield all living modules, identified by ``type``: ``__class__`` of an object can run code."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.nn.Module) and "_parameters" in thing.__dict__:
            yield thing


def in_shards() -> Iterator[torch.Tensor]:
    """Yield parameters that FSDP's first version keeps in shards, as plain tensors."""
    for module in modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            yield from module.parameters()
