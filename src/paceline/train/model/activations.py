"""Activation checkpointing: recompute layers' activations in backward instead of storing them."""

from __future__ import annotations

import functools
from collections import Counter

from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.errors import Finding, UsageError
from paceline.train.model.blocks import blocks_of


def recompute(model: nn.Module, layers: tuple[type[nn.Module], ...] | None) -> int:
    """Make layers of a model recompute their activations; return the number of these layers.

    Only the ``forward`` of these instances changes: classes, attributes and keys remain unchanged.

    Args:
        model: The user's module.
        layers: Classes of these layers; None means the outermost entries of every ``ModuleList``.

    Raises:
        UsageError: The model has no such layer.
    """
    if layers is None:
        selected = blocks_of(model)
    else:
        selected = [
            module
            for module in model.modules()
            if isinstance(module, layers) and module is not model
        ]
    if not selected:
        raise _none_found(model, layers)
    for module in selected:
        if getattr(module.forward, "func", None) is not checkpoint:  # not recomputed already
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    return len(selected)


def _none_found(model: nn.Module, layers: tuple[type[nn.Module], ...] | None) -> UsageError:
    counted = Counter(type(module).__name__ for module in model.modules() if module is not model)
    sought = "nn.ModuleList"
    if layers is not None:
        sought = " or ".join(layer.__name__ for layer in layers)
    return UsageError(
        Finding(
            "option-invalid",
            f"{type(model).__name__} has no {sought} whose activations could be recomputed",
            where="session.recompute(model)",
            evidence=tuple(f"{count} x {name}" for name, count in counted.most_common(5)),
            fix=(
                "session.recompute(model, layers=(YourBlock,)): the class of the block that repeats"
            ),
        )
    )
