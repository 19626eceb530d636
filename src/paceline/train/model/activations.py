"""Activation checkpointing: layers that compute their activations again in backward instead of keeping them."""

from __future__ import annotations

import functools
from collections import Counter

from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.errors import Finding, UsageError
from paceline.train.model.blocks import blocks_of


def recompute(model: nn.Module, layers: tuple[type[nn.Module], ...] | None) -> int:
    """Let layers of a model recompute their activations; return how many do.

    Only the ``forward`` of these instances changes: classes, attributes and keys stay as they are.

    Args:
        model: The user's own module.
        layers: Their classes; None: the outermost entries of every ``ModuleList``.

    Raises:
        UsageError: There is none.
    """
    if layers is None:
        chosen = blocks_of(model)
    else:
        chosen = [each for each in model.modules() if isinstance(each, layers) and each is not model]
    if not chosen:
        raise _none_found(model, layers)
    for each in chosen:
        if getattr(each.forward, "func", None) is not checkpoint:  # asked for before
            each.forward = functools.partial(checkpoint, each.forward, use_reentrant=False)
    return len(chosen)


def _none_found(model: nn.Module, layers: tuple[type[nn.Module], ...] | None) -> UsageError:
    counted = Counter(type(each).__name__ for each in model.modules() if each is not model)
    sought = "nn.ModuleList" if layers is None else " or ".join(each.__name__ for each in layers)
    return UsageError(
        Finding(
            "option-invalid",
            f"{type(model).__name__} has no {sought} whose activations could be recomputed",
            where="session.recompute(model)",
            evidence=tuple(f"{count} x {name}" for name, count in counted.most_common(5)),
            fix="session.recompute(model, layers=(YourBlock,)): the class of the block that repeats",
        )
    )
