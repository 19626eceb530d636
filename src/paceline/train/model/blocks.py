"""Find the layers of a model, and recompute their activations in backward to save memory."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.errors import UsageError, option_invalid


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


def recompute(model: nn.Module, layers: tuple[type[nn.Module], ...] | None) -> int:
    """Make layers of a model recompute their activations; return the number of these layers.

    Only the ``forward`` of these instances changes: classes, attributes and keys remain unchanged.
    The second forward leaves the running statistics of batch norm alone. ``layers`` are their
    classes; None means the outermost entries of every ``ModuleList``. Raises UsageError if the
    model has no such layer.
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
        if getattr(module.forward, "func", None) is not _checkpointed:  # not recomputed already
            module.forward = functools.partial(_checkpointed, module, module.forward)
    return len(selected)


def _checkpointed(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():  # which updates each buffer once, and refuses contexts
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    # Looked for in each forward, since modules may have been converted to SyncBatchNorm.
    norms = [
        inner
        for inner in module.modules()
        if isinstance(getattr(inner, "running_mean", None), torch.Tensor)
    ]
    if not norms:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _without_updates(norms)),
        **kwargs,
    )


@contextmanager
def _without_updates(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Let a second forward update copies of running statistics: the first has counted the batch."""
    kept = [
        (norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)
    ]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)


def _none_found(model: nn.Module, layers: tuple[type[nn.Module], ...] | None) -> UsageError:
    counted = Counter(type(module).__name__ for module in model.modules() if module is not model)
    sought = "nn.ModuleList"
    if layers is not None:
        sought = " or ".join(layer.__name__ for layer in layers)
    return option_invalid(
        f"{type(model).__name__} has no {sought} whose activations could be recomputed",
        where="session.recompute(model)",
        evidence=tuple(f"{count} x {name}" for name, count in counted.most_common(5)),
        fix="session.recompute(model, layers=(YourBlock,)): the class of the block that repeats",
    )
