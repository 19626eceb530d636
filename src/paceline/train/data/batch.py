"""What a batch is made of: moved to the device, emptied, rebuilt; the next one copied while this one computes."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

_PLAIN = (str, bytes, int, float)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all that can be moved on ``device``; nested dicts, lists, tuples and dataclasses are kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):  # a packed sequence, a tokenizer's encoding
        return batch.to(device)
    return rebuilt(batch, lambda part: to_device(part, device))


def without_rows(batch: Any, *, num_rows: int = 1) -> Any:
    """Return a batch of the same structure with zero rows.

    A list is one of fields, each a stack of rows, or it has an entry for each sample, as ``tuple(zip(*samples))``
    makes them of pictures of many sizes. Its length tells, and what is in it; see ``_has_entries``.

    Args:
        batch: A batch of real samples, for its structure.
        num_rows: How many samples those are.
    """
    return _emptied(batch, num_rows if _has_entries(batch, num_rows) else None)


def _emptied(batch: Any, num_entries: int | None) -> Any:
    if _is_array(batch):
        return batch[:0] if len(batch.shape) else batch
    if _is_list(batch) and (all(isinstance(part, _PLAIN) for part in batch) or _may_be_entries(batch, num_entries)):
        return batch[:0]
    return rebuilt(batch, lambda part: _emptied(part, num_entries))


def _has_entries(batch: Any, num_rows: int) -> bool:
    """Return whether the lists that are as long as the batch has rows hold an entry for each sample.

    They do if anything in one of them is no stack of rows itself: a picture, a number, an object. That never happens
    with torch's default collation, which stacks all but strings. One of them speaks for all, since those who do not
    stack pictures do not stack labels either, and a label of one number looks like a stack of one row.
    """
    parts = list(_parts(batch))
    unlike = [part for part in parts if not isinstance(part, str | bytes) and not _is_stack(part, num_rows)]
    if unlike and _may_be_entries(batch, num_rows):
        return True
    return any(_has_entries(part, num_rows) for part in parts)


def _may_be_entries(batch: Any, num_rows: int | None) -> bool:
    if not _is_list(batch) or len(batch) != num_rows:
        return False
    return not all(_is_list(part) and len(part) == num_rows for part in batch)  # fields that are lists of entries


def _is_stack(part: Any, num_rows: int) -> bool:
    """Return whether something could hold ``num_rows`` rows, or those of a batch that was emptied before."""
    if _is_array(part):
        return len(part.shape) > 0 and part.shape[0] in (0, num_rows)
    if _is_list(part) and all(isinstance(each, _PLAIN) for each in part):
        return len(part) in (0, num_rows)
    parts = list(_parts(part))
    return bool(parts) and all(_is_stack(each, num_rows) for each in parts)


def can_be_emptied(batch: Any, *, num_rows: int = 1) -> bool:
    """Return whether ``without_rows`` can take all rows of a batch away: it holds no object of an unknown type."""
    return _is_known(without_rows(batch, num_rows=num_rows))


def _is_known(part: Any) -> bool:
    if part is None or isinstance(part, _PLAIN) or _is_array(part) or getattr(part, "shape", None) == ():
        return True
    if isinstance(part, Mapping):
        return all(map(_is_known, part.values()))
    if callable(getattr(part, "to", None)):  # a batch of graphs, a packed sequence, a list with more to it
        return False
    is_open = isinstance(part, list | tuple) or bool(_fields_of(part))
    return is_open and all(map(_is_known, _parts(part)))


def parts_of_batch(batch: Any) -> Iterable[Any]:
    """Return the parts of a dict, list, tuple or dataclass; nothing of anything else."""
    return _parts(batch)


def _is_array(part: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return isinstance(part, torch.Tensor) or (numpy is not None and isinstance(part, numpy.ndarray))


def _is_list(part: Any) -> bool:
    return isinstance(part, list | tuple) and not hasattr(part, "_fields")


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, list | tuple):
        return batch
    return _fields_of(batch).values()


def _fields_of(batch: Any) -> dict[str, Any]:
    """Return the fields of an instance of a dataclass; nothing of anything else."""
    if not dataclasses.is_dataclass(batch) or isinstance(batch, type):
        return {}
    names = [field.name for field in dataclasses.fields(batch)]
    return {name: getattr(batch, name) for name in names if hasattr(batch, name)}


def rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a container with ``function`` applied to its parts; anything else as it is."""
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps the type and what else it holds
        for key, part in list(batch.items()):
            clone[key] = function(part)  # not update, which the outputs of transformers' models refuse
        return clone
    if isinstance(batch, Mapping):
        return {key: function(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(function, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(function, batch))
    if fields := _fields_of(batch):
        clone = copy.copy(batch)
        for name, part in fields.items():
            # Not dataclasses.replace: __post_init__ would do its work, a normalisation say, a second time. And past
            # __setattr__, which frozen ones refuse.
            object.__setattr__(clone, name, function(part))
        return clone
    return batch


def moved(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a device."""
    if device.type == "cpu":
        return batches  # as the workers made them
    if device.type == "cuda":
        return moved_ahead(batches, device)
    return (to_device(batch, device) for batch in batches)


def moved_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a GPU; each is copied on a stream of its own while the one before is computed with."""
    stream = torch.cuda.Stream(device)

    def start(batch: Any) -> Any:
        # The memory of a batch that is gone belongs to this stream, which would fill it again at once, while kernels
        # that read it may still wait on the other one. That holds for what was moved by its own ``to`` too, in which
        # no tensor is found to tell the allocator of. So a copy waits for all that was started before: those are the
        # steps up to the one before the batch that is yielded now, with whose step it overlaps.
        stream.wait_stream(torch.cuda.current_stream(device))
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
        if batch.is_cuda:  # parts of some stay on the CPU, as the batch_sizes of a packed sequence
            batch.record_stream(stream)
        return batch
    return rebuilt(batch, lambda part: _use_on(part, stream))
