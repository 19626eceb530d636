"""Detect changes of a dataset without reading it, so that workers with a copy can be restarted."""

from __future__ import annotations

import sys
import zlib
from types import ModuleType
from typing import Any

import torch

_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_MOST = 1000  # objects inspected, and parts of each; of a larger container only its length
_WHOLE_BYTES = 1 << 20  # smaller NumPy arrays are summed whole, larger ones at some thousand places
_PLACES = 1 << 14


def state_of(dataset: Any) -> Any:
    """Return a value that compares equal as long as no change of a dataset is detected.

    Attributes are followed through objects, dicts, lists and tuples, each once. Tensors are
    compared by their version, NumPy arrays by a checksum. Undetected are changes of a few elements
    in arrays above 1 MiB, of members of containers with more than 1,000, and beyond 1,000 objects.
    Arrays mapped from a file are shared with the workers anyway.
    """
    return _seen(dataset, set())


def _seen(value: Any, before: set[int]) -> Any:
    """Return the comparable value of a part.

    Args:
        value: The part.
        before: Ids of the objects inspected so far, so that shared objects are inspected once.
    """
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return id(value), _checksum(value, numpy)
    parts: Any = None
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple | set | frozenset):
        parts = dict(enumerate(value)) if len(value) <= _MOST else {}
    attributes = getattr(value, "__dict__", None)
    is_open = parts is not None or isinstance(attributes, dict)
    if not is_open or id(value) in before or len(before) >= _MOST or isinstance(value, ModuleType):
        return id(value)
    before.add(id(value))
    return (
        id(value),
        None if parts is None else len(value),
        _all_seen(parts, before),
        _all_seen(attributes, before),
    )


def _all_seen(parts: Any, before: set[int]) -> Any:
    if not isinstance(parts, dict) or len(parts) > _MOST:
        return None
    return {key: _seen(part, before) for key, part in parts.items()}


def _checksum(array: Any, numpy: Any) -> int:
    if (
        array.dtype.hasobject
        or isinstance(array, numpy.memmap)
        or isinstance(array.base, numpy.memmap)
    ):
        return 0
    step = 1 if array.nbytes <= _WHOLE_BYTES else max(1, array.size // _PLACES)
    return zlib.crc32(array.flat[::step].tobytes())
