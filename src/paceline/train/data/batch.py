"""Move batches to the device, empty and rebuild them, and copy the next one during computation."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from paceline.machine import accelerator

_PLAIN = (str, bytes, int, float)


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch moved to ``device``; nested dicts, lists, tuples and dataclasses are kept."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(batch, "to", None)):  # a packed sequence, a tokenizer's encoding
        return batch.to(device)
    return rebuilt(batch, lambda part: to_device(part, device))


def without_rows(batch: Any, *, num_rows: int = 1) -> Any:
    """Return a batch of the same structure with zero rows, from one of real samples.

    A list holds either fields, each a stack of rows, or an entry for each sample, as
    ``tuple(zip(*samples))`` makes of pictures of many sizes. ``_has_entries`` decides from its
    length and content.
    """
    return selected(batch, [], num_rows=num_rows)


def selected(batch: Any, rows: list[int], *, num_rows: int) -> Any:
    """Return the rows at some positions of a batch of ``num_rows`` rows, in the same structure."""
    return _selected(batch, rows, num_rows if _has_entries(batch, num_rows) else None)


def _selected(batch: Any, rows: list[int], num_entries: int | None) -> Any:
    if is_array(batch):
        if rows and len(batch.shape):
            return batch[rows]
        return batch[:0] if len(batch.shape) else batch
    if _is_list(batch) and (
        all(isinstance(part, _PLAIN) for part in batch) or _may_be_entries(batch, num_entries)
    ):
        return type(batch)(batch[row] for row in rows)
    return rebuilt(batch, lambda part: _selected(part, rows, num_entries))


def _has_entries(batch: Any, num_rows: int) -> bool:
    """Return whether the batch's lists of length ``num_rows`` hold an entry for each sample.

    They do if an element of such a list is not a stack of rows itself: a picture, a number, an
    object. Torch's default collation never makes such lists, because it stacks all but strings. One
    list decides for all of them: code that does not stack pictures does not stack labels either,
    and a label of one number looks like a stack of one row.
    """
    parts = list(parts_of_batch(batch))
    unlike = [
        part
        for part in parts
        if not isinstance(part, str | bytes) and not _is_stack(part, num_rows)
    ]
    if unlike and _may_be_entries(batch, num_rows):
        return True
    return any(_has_entries(part, num_rows) for part in parts)


def _may_be_entries(batch: Any, num_rows: int | None) -> bool:
    if not _is_list(batch) or len(batch) != num_rows:
        return False
    return not all(_is_list(part) and len(part) == num_rows for part in batch)  # fields of entries


def _is_stack(part: Any, num_rows: int) -> bool:
    """Return whether a part can hold ``num_rows`` rows, or the zero rows of an emptied batch."""
    if is_array(part):
        return len(part.shape) > 0 and part.shape[0] in (0, num_rows)
    if _is_list(part) and all(isinstance(item, _PLAIN) for item in part):
        return len(part) in (0, num_rows)
    parts = list(parts_of_batch(part))
    return bool(parts) and all(_is_stack(item, num_rows) for item in parts)


def can_be_emptied(batch: Any, *, num_rows: int = 1) -> bool:
    """Return whether ``without_rows`` can remove all rows: the batch has only known types."""
    return _is_known(without_rows(batch, num_rows=num_rows))


def _is_known(part: Any) -> bool:
    if part is None or isinstance(part, _PLAIN) or is_array(part) or _shape_of(part) == ():
        return True
    if isinstance(part, Mapping):
        return all(map(_is_known, part.values()))
    if callable(getattr(part, "to", None)):  # a batch of graphs, a packed sequence, a list subclass
        return False
    is_open = isinstance(part, list | tuple) or bool(_fields_of(part))
    return is_open and all(map(_is_known, parts_of_batch(part)))


def is_of_rows(part: Any) -> bool:
    """Return whether an object is a tensor, or has a shape as one, and yields and selects rows.

    A TensorDict is a Mapping, but its iterator yields rows; a tensorclass is a dataclass, but its
    fields have to have the shape of the whole.
    """
    shape = _shape_of(part)
    return isinstance(shape, torch.Size) and (len(shape) > 0 or isinstance(part, torch.Tensor))


def _shape_of(part: Any) -> Any:
    try:
        return getattr(part, "shape", None)
    except RuntimeError:  # a nested tensor, whose rows have shapes of their own
        return None


def is_array(part: Any) -> bool:
    """Return whether an object is a tensor, selects rows as one, or is a NumPy array."""
    numpy = sys.modules.get("numpy")
    return is_of_rows(part) or (numpy is not None and isinstance(part, numpy.ndarray))


def _is_list(part: Any) -> bool:
    return isinstance(part, list | tuple) and not hasattr(part, "_fields")


def parts_of_batch(batch: Any) -> Iterable[Any]:
    """Return the parts of a dict, list, tuple or dataclass; nothing for other types."""
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, list | tuple):
        return batch
    return _fields_of(batch).values()


def _fields_of(batch: Any) -> dict[str, Any]:
    """Return the fields of an instance of a dataclass; nothing for other types."""
    if not dataclasses.is_dataclass(batch) or isinstance(batch, type):
        return {}
    names = [field.name for field in dataclasses.fields(batch)]
    return {name: getattr(batch, name) for name in names if hasattr(batch, name)}


def rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a container with ``function`` applied to its parts, or another object unchanged."""
    if isinstance(batch, MutableMapping):
        clone = copy.copy(batch)  # keeps the type and other attributes
        for key, part in list(batch.items()):
            clone[key] = function(part)  # not update, which model outputs of transformers refuse
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
            # Not dataclasses.replace: it would run __post_init__, for example a normalization, a
            # second time. object.__setattr__, because frozen dataclasses refuse their own.
            object.__setattr__(clone, name, function(part))
        return clone
    return batch


def moved(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a device."""
    if device.type == "cpu":
        return batches  # unchanged
    if device.type == accelerator.kind():
        return moved_ahead(batches, device)
    return (to_device(batch, device) for batch in batches)


def moved_ahead(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield batches on a GPU; copy the next on a separate stream during the computation."""
    stream = torch.Stream(device)

    def start(batch: Any) -> Any:
        # The memory of a freed batch belongs to this stream, which would reuse it at once, while
        # kernels that read it may still be queued on the other stream. This includes batches that
        # were moved by their own ``to``, whose tensors cannot be found to inform the allocator. So
        # a copy waits for all work queued before it: the steps up to the one before the batch that
        # is yielded now. It overlaps with the step of that batch.
        stream.wait_stream(torch.accelerator.current_stream(device))
        with stream:
            return to_device(batch, device)

    try:
        coming = start(next(batches))
    except StopIteration:
        return
    while True:
        current = torch.accelerator.current_stream(device)
        current.wait_stream(stream)
        _use_on(coming, current)
        ready = coming
        try:
            coming = start(next(batches))
        except StopIteration:
            yield ready
            return
        yield ready


def _use_on(batch: Any, stream: torch.Stream) -> None:
    """Keep the allocator from reusing a batch's memory before ``stream`` has used it."""
    if not isinstance(batch, torch.Tensor):
        for part in parts_of_batch(batch):
            _use_on(part, stream)
    elif batch.device.type != "cpu":  # as batch_sizes of a packed sequence always is
        batch.record_stream(stream)
