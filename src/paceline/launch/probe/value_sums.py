"""Sum the values of tensors, so that sums over ranks can be compared with those of one process.

Five sums of a tensor's local values: their number, and those of x, of its magnitude, its square and
its cube. A norm alone does not see a sign, and behind a normalisation it is always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

NUM_SUMS = 5
_CHUNK = 1 << 22  # values that are in float64 at the same time: logits are many
_DEPTH = 4  # of containers in containers


def local(tensor: Any) -> Any:
    """Return the part of a tensor that this rank holds, detached."""
    detached = tensor.detach()
    return detached._local_tensor if hasattr(detached, "_local_tensor") else detached


def is_partial(tensor: Any) -> bool:
    """Return whether the values of ranks are yet to be added, in a DTensor that says so."""
    placements = getattr(tensor, "placements", ()) if hasattr(tensor, "_local_tensor") else ()
    return any(placement.is_partial() for placement in placements)


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the tensors in a value of a forward: in lists, dicts and the fields of an output."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part, depth - 1)


def dtype_precision(tensor: Any) -> float:
    """Return the precision of a tensor's type; 0 for integers."""
    return torch.finfo(tensor.dtype).eps if tensor.dtype.is_floating_point else 0.0


def sums_of(tensor: Any) -> Any:
    """Return the sums of a tensor's local values, on its device; NaN and infinity count as 0."""
    values = local(tensor)
    if values.is_sparse:
        values = values.coalesce().values()
    values = torch.view_as_real(values) if values.is_complex() else values
    total = torch.zeros(NUM_SUMS, dtype=torch.float64, device=values.device)
    for part in values.reshape(-1).split(_CHUNK):
        total[1:] += _powers(part.to(torch.float64).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    total[0] = local(tensor).numel()
    return total


def _powers(values: Any) -> Any:
    square = values * values
    return torch.stack([values.sum(), values.abs().sum(), square.sum(), (square * values).sum()])


class SumTable:
    """Sums of some tensors, which are read from the device at the end only."""

    def __init__(self) -> None:
        self._sums: list[Any] = []
        self.precision = 0.0  # of the coarsest type
        self.count = 0

    def add(self, tensors: Iterator[Any]) -> None:
        """Add tensors whose sums count together; those that ranks have yet to add are left out."""
        for tensor in tensors:
            self.count += 1
            if not is_partial(tensor):
                self.add_apart(tensor)

    def add_apart(self, tensor: Any) -> None:
        """Add a tensor that has a row of its own."""
        with torch.no_grad():
            self._sums.append(sums_of(tensor))
        self.precision = max(self.precision, dtype_precision(tensor))

    def rows(self) -> list[list[float]]:
        """Return the sums of each tensor."""
        return [row.tolist() for row in self._sums]

    def total(self) -> list[float]:
        """Return the sums over all tensors."""
        rows = self.rows()
        return [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * NUM_SUMS
