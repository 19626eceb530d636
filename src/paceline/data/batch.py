"""What a batch is made of: moved to the device, emptied, rebuilt; the next one copied while this one computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all that can be moved on ``device``; nested dicts, lists and tuples are kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):  # a packed sequence, a tokenizer's encoding
        return batch.to(device)
    return rebuilt(batch, lambda part: to_device(part, device))


def without_rows(batch: Any) -> Any:
    """Return a batch of the same structure with zero rows."""
    if isinstance(batch, torch.Tensor):
        return batch[:0] if batch.dim() else batch
    if isinstance(batch, list | tuple) and all(isinstance(part, str | bytes | int | float) for part in batch):
        return batch[:0]  # one plain value for each sample
    return rebuilt(batch, without_rows)


def rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a container with ``function`` applied to its parts; anything else as it is."""
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps the type and what else it holds
        clone.update({key: function(part) for key, part in batch.items()})
        return clone
    if isinstance(batch, Mapping):
        return {key: function(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(function, batch))
    return batch


def moved_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a GPU; each is copied on a stream of its own while the one before is computed with."""
    stream = torch.cuda.Stream(device)

    def start(batch: Any) -> Any:
        with torch.cuda.stream(stream):
            return to_device(batch, device)

    try:
        coming = start(next(batches))
    except StopIteration:
        return
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        _use_on(coming, current)
        ready = coming
        try:
            coming = start(next(batches))
        except StopIteration:
            yield ready
            return
        yield ready


def _use_on(batch: Any, stream: torch.cuda.Stream) -> Any:
    """Tell the allocator that a stream uses memory that another one allocated, so that it is not reused early."""
    if isinstance(batch, torch.Tensor):
        batch.record_stream(stream)
        return batch
    return rebuilt(batch, lambda part: _use_on(part, stream))
