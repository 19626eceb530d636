"""The parameters of a rank's model, as they can be found from outside: names, and which of them are shards."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence

import torch

_WRAPPERS = ("module.", "_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.")


def names_of(parameters: Sequence[torch.Tensor]) -> list[str]:
    """Return the names that parameters have in their model, without those of wrappers around it."""
    wanted = {id(each): "" for each in parameters}
    for module in modules():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            if id(parameter) in wanted:
                own = functools.reduce(lambda left, wrapper: left.replace(wrapper, ""), _WRAPPERS, name)
                wanted[id(parameter)] = max(wanted[id(parameter)], own, key=lambda each: (each.count("."), each))
    return [wanted[id(each)] or f"parameter {place}" for place, each in enumerate(parameters)]


def modules() -> Iterator[torch.nn.Module]:
    """Yield all modules that live. Their types are looked at, because asking an object for its class can run code."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.nn.Module) and "_parameters" in thing.__dict__:
            yield thing


def in_shards() -> Iterator[torch.Tensor]:
    """Yield parameters that FSDP's first version keeps in shards, as plain tensors."""
    for module in modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            yield from module.parameters()
