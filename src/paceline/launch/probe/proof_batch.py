"""Cut a batch into two uneven parts, for the proof of a loss: its rows, whatever holds them."""

from __future__ import annotations

import copy
from typing import Any

from paceline.launch.probe.orders import parts_of, size_of
from paceline.train.data import can_be_emptied, rebuilt, selected

Rows = list[int]  # positions in the batch


class NotCut(Exception):
    """The rows of a batch cannot be told apart; the message says why."""


def kept(batch: Any) -> Any:
    """Return a copy of a batch, which its script cannot change.

    Raises NotCut if the batch cannot be copied.
    """
    try:
        return copy.deepcopy(batch)
    except Exception as error:  # it may hold any object
        raise NotCut(f"its batch cannot be copied: {type(error).__name__}: {error}") from None


def num_rows(loader: Any, batch: Any) -> int:
    """Return the rows of a loader's first batch; NotCut if unknown, or if parts differ."""
    found = size_of(batch)[0]
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or found
    if found < size and found == _length(loader.dataset):
        size = found
    size = getattr(loader, "rows", 0) or size  # paceline's own loader counts them
    if not size or not can_be_emptied(batch, num_rows=size):
        raise NotCut(f"the rows of its batch ({type(batch).__name__}) are unknown")
    shape = _other_shape(batch, size, is_entry=False)
    if shape is not None:
        raise NotCut(f"its batch of {size} rows has a part of shape {list(shape)}")
    return int(size)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:  # a stream
        return None


def _other_shape(part: Any, size: int, *, is_entry: bool) -> Any:
    """Return the shape of a part that has not the rows of the batch; None if all have."""
    shape: Any = getattr(part, "shape", None)
    if shape is not None:
        return shape if len(shape) and shape[0] != size and not is_entry else None
    is_list = isinstance(part, list | tuple)
    if is_list and not is_entry and len(part) != size and all(map(_is_plain, part)):
        return (len(part),)
    is_entry = is_entry or (is_list and len(part) == size)
    shapes = (_other_shape(inner, size, is_entry=is_entry) for inner in parts_of(part))
    return next((found for found in shapes if found is not None), None)


def _is_plain(part: Any) -> bool:
    return isinstance(part, str | bytes | int | float)


def divisions(num_rows: int) -> list[tuple[Rows, Rows]]:
    """Divide rows into two parts, in three ways. Pure.

    There are several ways because what a mean counts, such as tokens, may be in proportion in one.
    The sizes have large common factors with the number of rows, since loops cut batches into equal
    chunks or pairs. Raises NotCut if there is one row only.
    """
    if num_rows < 2:
        raise NotCut("its batch has one row")
    least = 2 if num_rows > 3 else 1
    unit = _unit(num_rows, least_units=3)
    cut = min(-(-2 * (num_rows // unit) // 3) * unit, num_rows - least)
    rows, unit = list(range(num_rows)), _unit(num_rows, least_units=4)
    in_turn = [[row for row in rows if row // unit % 2 == place] for place in (0, 1)]
    other = num_rows - cut
    return [(rows[:cut], rows[cut:]), (rows[:other], rows[other:]), (in_turn[0], in_turn[1])]


def _unit(num_rows: int, *, least_units: int) -> int:
    """Return the largest power of two that divides the rows into so many units, if they allow."""
    powers = (1 << place for place in range(num_rows.bit_length()))
    fit = [size for size in powers if num_rows % size == 0 and num_rows // size >= least_units]
    return max(fit, default=1)


def cut(batch: Any, size: int, rows: Rows, *, is_double: bool) -> Any:
    """Return a copy of some rows of a batch, in float64 on request."""
    part = copy.deepcopy(selected(batch, rows, num_rows=size))
    return _doubled(part) if is_double else part


def _doubled(part: Any) -> Any:
    import torch

    if isinstance(part, torch.Tensor):
        return part.double() if part.is_floating_point() else part
    return rebuilt(part, _doubled)
