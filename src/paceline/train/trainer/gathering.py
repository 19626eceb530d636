"""Gather values of any kind from all ranks, in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from paceline.train.session import Session


def gathered(session: Session, data: Any) -> Any:
    """Return the tensors of all ranks, stacked in the order of ranks; a collective.

    They have the same shape on all ranks; numbers, dicts, lists and tuples are possible. A sum with
    zeros in the other ranks' places changes no value, and needs no order of rows.
    """
    return mapped(data, lambda part: _of_all(session, part))


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a nested dict, list or tuple with a function applied to what it holds."""
    if isinstance(value, Mapping):
        return {name: mapped(part, function) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [mapped(part, function) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return function(value)


def _of_all(session: Session, data: Any) -> torch.Tensor:
    tensor = torch.as_tensor(data, device=session.device).detach()
    if session.world_size == 1:
        return tensor
    places = torch.zeros((session.world_size, *tensor.shape), dtype=tensor.dtype)
    places = places.to(tensor.device)
    places[session.rank] = tensor
    return session.reduce(places).to(tensor.dtype)
