"""Find the blocks of a model, which are sharded or recomputed one at a time."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module, *, listed: bool = False) -> list[nn.Module]:
    """Return the outermost modules in ``ModuleList`` that can be called, each once, in order.

    Args:
        model: The model.
        listed: Whether the model itself is in a ``ModuleList``.
    """
    found: list[nn.Module] = []
    for each in model.children():
        if listed and has_forward(each):
            found.append(each)
        else:
            found += blocks_of(each, listed=listed or isinstance(each, nn.ModuleList))
    return list(dict.fromkeys(found))


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; containers such as ``ModuleList`` cannot."""
    return type(module).forward is not nn.Module.forward
