"""Make a batch of samples as torch's ``default_collate`` does, and send small ones faster.

``default_collate`` converts each NumPy array of a batch to a tensor before it stacks them, in some
2 µs a sample, and Python's numbers in four times NumPy's time. A worker of torch sends each tensor
of a batch in a separate file in shared memory, in some 100 µs a tensor; a small tensor travels
through the pipe in a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate as collate_by_type
from torch.utils.data._utils.collate import default_collate_fn_map

MOST_BYTES = 1 << 16  # of a tensor that is sent through the pipe, which holds as much

_NUMBERS = "biufc"  # kinds of NumPy types: booleans, integers, floats, complex numbers


def collate(samples: list[Any]) -> Any:
    """Return a batch of samples, the same as ``default_collate``."""
    columns = _columns(samples)
    by_type = {**default_collate_fn_map, **_BY_TYPE}  # now: libraries add their types when imported
    if columns is None:
        return collate_by_type(samples, collate_fn_map=by_type)
    return [collate_by_type(column, collate_fn_map=by_type) for column in columns]


def _columns(samples: list[Any]) -> list[tuple[Any, ...]] | None:
    """Return the fields of samples that are plain tuples of one length; None for other samples."""
    if set(map(type, samples)) != {tuple}:
        return None
    try:
        return list(zip(*samples, strict=True))
    except ValueError:
        return None


def _stack_arrays(arrays: Any, *, collate_fn_map: Any = None) -> Any:
    first = arrays[0]
    # In a worker torch stacks a large batch in shared memory, which saves a copy.
    if _is_small(first, len(arrays)) and _are_alike(arrays):
        return torch.from_numpy(np.array(arrays))
    return default_collate_fn_map[np.ndarray](arrays, collate_fn_map=collate_fn_map)


def _are_alike(arrays: Any) -> bool:
    """Return whether all are plain arrays of numbers of one type and shape."""
    dtype, shape = arrays[0].dtype, arrays[0].shape
    if dtype.kind not in _NUMBERS or set(map(type, arrays)) != {np.ndarray}:
        return False
    return all(array.shape == shape and array.dtype == dtype for array in arrays)


def _stack_tensors(tensors: Any, *, collate_fn_map: Any = None) -> Any:
    # A small batch leaves a worker through the pipe, and needs no shared memory.
    if get_worker_info() is not None and _are_small_tensors(tensors):
        return torch.stack(tensors)
    return default_collate_fn_map[torch.Tensor](tensors, collate_fn_map=collate_fn_map)


def _are_small_tensors(tensors: Any) -> bool:
    """Return whether all are plain tensors of one type, and their batch is small."""
    first = tensors[0]
    if set(map(type, tensors)) != {torch.Tensor} or first.layout != torch.strided:
        return False
    if first.is_nested or not _is_small(first, len(tensors)):
        return False
    return all(tensor.dtype == first.dtype for tensor in tensors)


def _is_small(first: Any, number: int) -> bool:
    """Return whether a batch is made without shared memory; outside of a worker, each is."""
    return get_worker_info() is None or first.nbytes * number <= MOST_BYTES


def _join_ints(numbers: Any, *, collate_fn_map: Any = None) -> Any:
    if set(map(type, numbers)) == {int}:
        with suppress(OverflowError):
            return torch.from_numpy(np.array(numbers, dtype=np.int64))
    return default_collate_fn_map[int](numbers, collate_fn_map=collate_fn_map)


def _join_floats(numbers: Any, *, collate_fn_map: Any = None) -> Any:
    if set(map(type, numbers)) == {float}:
        return torch.from_numpy(np.array(numbers, dtype=np.float64))
    return default_collate_fn_map[float](numbers, collate_fn_map=collate_fn_map)


_BY_TYPE: dict[Any, Callable[..., Any]] = {
    torch.Tensor: _stack_tensors,
    np.ndarray: _stack_arrays,
    float: _join_floats,
    int: _join_ints,
}


class _Packed:
    """A small tensor on its way from a worker, as an array that is pickled."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class Packing:
    """A collate function whose batches are packed for the way from a worker."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        return packed(self._collate(samples))


def packed(batch: Any) -> Any:
    """Return a batch whose small tensors are arrays, which are pickled; only inside a worker."""
    if get_worker_info() is None:
        return batch
    return _rebuilt(batch, _packed_tensor)


def unpacked(batch: Any) -> Any:
    """Return the batch that ``packed`` was given."""
    return _rebuilt(batch, _unpacked_tensor)


def _rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a batch with a function applied to its leaves; other containers are leaves too."""
    if type(batch) in (list, tuple):
        return type(batch)([_rebuilt(part, function) for part in batch])
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_rebuilt(part, function) for part in batch))
    if type(batch) is dict:
        return {key: _rebuilt(part, function) for key, part in batch.items()}
    return function(batch)


def _packed_tensor(part: Any) -> Any:
    is_plain = type(part) is torch.Tensor and part.device.type == "cpu"
    if not is_plain or part.nbytes > MOST_BYTES or part.layout != torch.strided:
        return part
    if part.requires_grad or part.dtype == torch.bfloat16 or part.is_quantized:
        return part
    return _Packed(part.numpy())


def _unpacked_tensor(part: Any) -> Any:
    return torch.from_numpy(part.array) if type(part) is _Packed else part
