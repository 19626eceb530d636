"""Find the blocks of a model, which are sharded or recomputed one at a time."""

from __future__ import annotations

from torch import nn


def blocks_of(model: nn.Module, *, listed: bool = False) -> list[nn.Module]:
    """Return the outermost modules in ``ModuleList`` that can be called, each once, in order.

    ``listed``: the model itself is in a ``ModuleList``.
    """
    blocks: list[nn.Module] = []
    for child in model.children():
        if listed and has_forward(child):
            blocks.append(child)
        else:
            blocks += blocks_of(child, listed=listed or isinstance(child, nn.ModuleList))
    return list(dict.fromkeys(blocks))


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; containers such as ``ModuleList`` cannot."""
    return type(module).forward is not nn.Module.forward
