"""What can be seen of a dataset without reading it, so that workers with a copy of it hear of changes."""

from __future__ import annotations

from typing import Any

import torch

_SIMPLE = (int, float, complex, str, bytes, bool, type(None))
_MOST = 1000  # parts that are looked at of one container; a longer one is told by its length


def state_of(dataset: Any) -> Any:
    """Return what compares equal as long as nobody has changed a dataset, as far as that can be seen.

    Attributes are followed through objects, dicts, lists and tuples, tensors are told by their version. Not seen are
    changes in place of NumPy arrays, and of members of containers with more than 1,000.
    """
    return _seen(dataset, set())


def _seen(value: Any, around: set[int]) -> Any:
    """Return what is seen of a part.

    Args:
        value: The part.
        around: Identities of what it is in, of which it may hold a reference.
    """
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    inner = {*around, id(value)}
    parts: Any = None
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple | set | frozenset):
        parts = dict(enumerate(value)) if len(value) <= _MOST else {}
    attributes = getattr(value, "__dict__", None)
    if id(value) in around or (parts is None and not isinstance(attributes, dict)):
        return id(value)
    return (
        id(value),
        None if parts is None else len(value),
        {key: _seen(part, inner) for key, part in parts.items()} if parts and len(parts) <= _MOST else None,
        {key: _seen(part, inner) for key, part in attributes.items()} if isinstance(attributes, dict) else None,
    )
