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
    return _state_of_part(dataset, set())


def _state_of_part(value: Any, visited: set[int]) -> Any:
    """Return the comparable value of a part; objects that are shared are inspected once."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return id(value), _checksum(value, numpy)
    parts = _parts_of(value)
    attributes = getattr(value, "__dict__", None)
    has_parts = parts is not None or isinstance(attributes, dict)
    if not has_parts or isinstance(value, ModuleType):
        return id(value)
    if id(value) in visited or len(visited) >= _MOST:
        return id(value)
    visited.add(id(value))
    return (
        id(value),
        None if parts is None else len(value),
        _state_of_parts(parts, visited),
        _state_of_parts(attributes, visited),
    )


def _parts_of(container: Any) -> dict[Any, Any] | None:
    """Return a container's members, none of a large list; None if it is not a container."""
    if isinstance(container, dict):
        return container
    if isinstance(container, list | tuple | set | frozenset):
        return dict(enumerate(container)) if len(container) <= _MOST else {}
    return None


def _state_of_parts(parts: Any, visited: set[int]) -> Any:
    if not isinstance(parts, dict) or len(parts) > _MOST:
        return None
    return {key: _state_of_part(part, visited) for key, part in parts.items()}


def _checksum(array: Any, numpy: Any) -> int:
    is_mapped = isinstance(array, numpy.memmap) or isinstance(array.base, numpy.memmap)
    if is_mapped or array.dtype.hasobject:
        return 0
    step = 1 if array.nbytes <= _WHOLE_BYTES else max(1, array.size // _PLACES)
    return zlib.crc32(array.flat[::step].tobytes())
