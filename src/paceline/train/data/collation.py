"""Make a batch of samples as torch's ``default_collate`` does, and send small ones faster.

``default_collate`` converts each NumPy array of a batch to a tensor before it stacks them, in some
2 µs a sample. A worker of torch sends each tensor of a batch in a separate file in shared memory,
in some 100 µs a tensor; a small tensor travels through the pipe in a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable
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
    return collate_by_type(samples, collate_fn_map=_BY_TYPE)


def _stack_arrays(arrays: Any, *, collate_fn_map: Any = None) -> Any:
    first = arrays[0]
    is_small = get_worker_info() is None or first.nbytes * len(arrays) <= MOST_BYTES
    # In a worker torch stacks a large batch in shared memory, which saves a copy.
    if is_small and all(_is_like(array, first) for array in arrays):
        return torch.from_numpy(np.array(arrays))
    return default_collate_fn_map[np.ndarray](arrays, collate_fn_map=collate_fn_map)


def _is_like(array: Any, first: Any) -> bool:
    is_array = type(array) is np.ndarray and array.dtype.kind in _NUMBERS
    return is_array and array.dtype == first.dtype and array.shape == first.shape


_BY_TYPE: dict[Any, Callable[..., Any]] = {**default_collate_fn_map, np.ndarray: _stack_arrays}


class _Packed:
    """A small tensor on its way from a worker, as an array that is pickled."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class Packing:
    """A collate function whose batches are packed for the way from a worker.

    Args:
        collate: Makes the batch.
    """

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
