"""Fingerprints of what all ranks must hold alike; they tell rounding from a difference.

A fingerprint of a tensor is two random projections of it: sums of its values with random signs. A
difference of two tensors changes them by about its norm; rounding changes them by about the norm of
the tensor times the precision of its type. Nodes with other processors round differently, and are
right. Signs are the same in every process.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.machine.parameters import held_by

# How many times the precision of its type a tensor may be apart, relative to its norm. If each of
# its values is rounded differently once, projections differ by 0.3 times; each step adds to that.
ROUNDINGS = 4
_COARSE = 1e-4  # types below this precision round most steps away, and do not drift with them
_RELATIVE = 1e-6  # of numbers such as learning rates
_TILE = 256  # added up in the tensor's own type: longer sums would lose more than they compare
_SHORT = 1 << 16  # longer tensors are first reduced by tiles
_CHUNK = 1 << 22  # values of a 16-bit tensor that are widened at a time
# Totals are in units of the tolerance. Of many tensors that are rounded differently, all by the
# tolerance, a total would not differ by more than this.
TOTAL_LIMIT = 2.0
_FAR = 1e15  # stands for a value that is not finite


class Value(NamedTuple):
    """The fingerprint of a tensor or a number."""

    name: str  # ``0.weight``, ``lr of SGD``, ``exp_avg of 0.weight``
    first: float  # the projections; infinite if the tensor is not finite
    second: float
    tolerance: float  # how far apart projections of equal tensors may be
    is_setting: bool = False  # whether it is a number, with itself as both projections


def fingerprints(
    parameters: Mapping[str, Any], optimizers: Iterable[Any], *, steps: int
) -> list[Value]:
    """Return the fingerprints of settings, parameters and optimizer state that ranks hold alike.

    Only whole, dense parameters that are trained are looked at, and optimizers only if they are
    classes of torch.optim that hold all of these together, and no others: further classes, and
    optimizers of some parameters, may be those of a rank that keeps a part of the state. ``steps``
    are counted since ranks were equal.
    """
    whole = {name: tensor for name, tensor in parameters.items() if _is_whole(tensor)}
    names = {id(tensor): name for name, tensor in whole.items()}
    of_torch = [optimizer for optimizer in optimizers if _holds_only(optimizer, names)]
    held = {id(parameter) for optimizer in of_torch for parameter in held_by(optimizer)}
    if held != set(names):
        of_torch = []
    settings = [value for optimizer in _named(of_torch).items() for value in _settings(*optimizer)]
    state = {name: tensor for one in of_torch for name, tensor in _state(one, names)}
    return settings + _of_tensors({**whole, **state}, steps=steps)


def total(values: Sequence[Value]) -> tuple[float, float]:
    """Return one pair of numbers for all fingerprints, in units of their tolerances. Pure.

    Totals of ranks that are equal up to rounding differ by less than ``TOTAL_LIMIT``.
    """
    first = second = 0.0
    for value in values:
        signs = zlib.crc32(value.name.encode())
        is_finite = math.isfinite(value.first)
        units = (value.first, value.second) if is_finite else (_FAR, _FAR)
        scale = value.tolerance if is_finite else 1.0
        first += units[0] / scale * (1 if signs & 1 else -1)
        second += units[1] / scale * (1 if signs & 2 else -1)
    size = math.sqrt(max(1, len(values)))
    return first / size, second / size


def are_alike(value: Value, other: Value) -> bool:
    """Return whether two fingerprints of one name are equal up to rounding. Pure."""
    if not (math.isfinite(value.first) and math.isfinite(other.first)):
        return math.isfinite(value.first) == math.isfinite(other.first)
    tolerance = max(value.tolerance, other.tolerance)
    apart = max(abs(value.first - other.first), abs(value.second - other.second))
    return apart <= tolerance


def _is_whole(tensor: Any) -> bool:
    """Return whether every rank holds the whole trained tensor; one of HSDP or ZeRO is a part."""
    import torch

    return (
        isinstance(tensor, torch.Tensor)
        and tensor.requires_grad
        and _is_dense(tensor)
        and not hasattr(tensor, "_fsdp_flattened")
    )


def _is_dense(tensor: Any) -> bool:
    import torch

    is_number = tensor.is_floating_point() or tensor.is_complex()
    is_plain = tensor.layout == torch.strided and not hasattr(tensor, "_local_tensor")
    return bool(is_number and is_plain and tensor.numel() and tensor.device.type != "meta")


def _holds_only(optimizer: Any, names: Mapping[int, str]) -> bool:
    is_of_torch = type(optimizer).__module__.startswith("torch.optim.")
    return is_of_torch and all(id(parameter) in names for parameter in held_by(optimizer))


def _named(optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return optimizers by class, with a number if there are several."""
    if len(optimizers) == 1:
        return {type(optimizers[0]).__name__: optimizers[0]}
    return {
        f"{type(optimizer).__name__} {number}": optimizer
        for number, optimizer in enumerate(optimizers, 1)
    }


def _settings(kind: str, optimizer: Any) -> Iterator[Value]:
    """Yield the numbers among the options of an optimizer's groups."""
    groups = optimizer.param_groups
    for number, group in enumerate(groups):
        place = f" group {number}" if len(groups) > 1 else ""
        for key, option in group.items():
            if key == "params":
                continue
            for part in option if isinstance(option, tuple) else (option,):
                if isinstance(part, int | float) or getattr(part, "ndim", None) == 0:
                    name = f"{key} of {kind}{place}"
                    yield _setting(name, float(part))


def _setting(name: str, number: float) -> Value:
    return Value(name, number, number, max(_RELATIVE * abs(number), 1e-30), is_setting=True)


def _state(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that an optimizer keeps for its parameters, by name."""
    import torch

    for parameter, kept in optimizer.state.items():
        if id(parameter) not in names or not isinstance(kept, dict):
            continue
        for key, tensor in kept.items():
            if isinstance(tensor, torch.Tensor) and _is_dense(tensor):
                yield f"{key} of {names[id(parameter)]}", tensor


def _of_tensors(tensors: Mapping[str, Any], *, steps: int) -> list[Value]:
    """Return the fingerprints of tensors; waits once for each of their devices."""
    by_device: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        by_device.setdefault(tensor.device, []).append(name)
    rows: dict[str, Sequence[float]] = {}
    for names in by_device.values():
        rows |= zip(names, _projections([tensors[name] for name in names]), strict=True)
    return [_value(name, tensor.dtype, rows[name], steps=steps) for name, tensor in tensors.items()]


def _value(name: str, dtype: Any, row: Sequence[float], *, steps: int) -> Value:
    import torch

    first, second, norm = row
    if not math.isfinite(norm):
        return Value(name, math.inf, math.inf, 1.0)
    precision = torch.finfo(dtype).eps
    drift = 1.0 if precision > _COARSE else math.sqrt(max(1, steps))
    # A power of two, so that ranks whose norms are rounded differently have the same unit.
    apart = ROUNDINGS * precision * drift * max(norm, 1e-30)
    return Value(name, first, second, 2.0 ** math.ceil(math.log2(apart)))


def _projections(tensors: Sequence[Any]) -> list[list[float]]:
    """Return two projections and the norm of each tensor; all are on one device.

    The norm of a long tensor is estimated from sums of its tiles.
    """
    import torch

    with torch.no_grad():
        flat = [_flattened(tensor) for tensor in tensors]
        projected = [values @ _signs(len(values), values.device) for values in flat]
        norms = torch.stack(torch._foreach_norm(flat))
        return torch.column_stack([torch.stack(projected), norms]).tolist()


def _flattened(tensor: Any) -> Any:
    """Return the values of a tensor as float64 [n], a long one reduced to sums of tiles."""
    import torch

    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    values = plain.reshape(-1)
    while len(values) > _SHORT:
        values = _reduced_by_tiles(values)
    return values.to(torch.float64)


def _reduced_by_tiles(values: Any) -> Any:
    """Return the sums of tiles with random signs, and the rest, as float64."""
    import torch

    rows = len(values) // _TILE
    tiles, rest = values[: rows * _TILE].view(rows, _TILE), values[rows * _TILE :]
    signs = _signs(_TILE, values.device)[:, 0]
    if values.dtype in (torch.float32, torch.float64):
        sums = torch.mv(tiles, signs.to(values.dtype))
    else:
        wide = signs.to(torch.float32)
        parts = tiles.split(_CHUNK // _TILE)
        sums = torch.cat([torch.mv(part.to(torch.float32), wide) for part in parts])
    return torch.cat([sums.to(torch.float64), rest.to(torch.float64)])


@functools.lru_cache(maxsize=256)
def _signs(length: int, device: Any) -> Any:
    """Return random signs as float64 [length, 2], the same in every process."""
    return _all_signs(device)[:length]


@functools.cache
def _all_signs(device: Any) -> Any:
    import torch

    bits = torch.randint(0, 2, (_SHORT, 2), generator=torch.Generator().manual_seed(1))
    return (2.0 * bits - 1.0).to(device, torch.float64)
