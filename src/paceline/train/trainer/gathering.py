"""Gather values of any kind from all ranks, in the order of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline.train.session import Session


def gathered(session: Session, data: Any) -> Any:
    """Return the tensors of all ranks, stacked in the order of ranks; a collective.

    A sum with zeros in the other ranks' places changes no value, and needs no order of rows.

    Args:
        session: Sums over ranks.
        data: A tensor of the same shape on all ranks, a number, or a dict, list or tuple of them.
    """
    if isinstance(data, Mapping):
        return {name: gathered(session, part) for name, part in data.items()}
    if isinstance(data, list | tuple):
        parts = [gathered(session, part) for part in data]
        return parts if isinstance(data, list) else tuple(parts)
    tensor = torch.as_tensor(data, device=session.device).detach()
    if session.world_size == 1:
        return tensor
    places = torch.zeros((session.world_size, *tensor.shape), dtype=tensor.dtype)
    places = places.to(tensor.device)
    places[session.rank] = tensor
    return session.reduce(places).to(tensor.dtype)
