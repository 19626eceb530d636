"""Compute checksums of the bits of parameters, for records of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a checksum of the bits of each tensor; synchronizes once with each device."""
    sums = [_bits(tensor.detach()).sum(dtype=torch.int64) for tensor in tensors]
    by_device: dict[torch.device, list[int]] = {}
    for place, total in enumerate(sums):
        by_device.setdefault(total.device, []).append(place)
    values = [0] * len(sums)
    for places in by_device.values():
        for place, value in zip(
            places, torch.stack([sums[place] for place in places]).tolist(), strict=True
        ):
            values[place] = value
    return values


def combined(sums: Iterable[int]) -> int:
    """Return one signed 64-bit checksum of all sums, which depends on their order."""
    total = 1
    for checksum in sums:
        total = (total * 0x100000001B3 + checksum) % (1 << 64)
    return total - (1 << 64) if total >> 63 else total


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.contiguous().view(_INTEGERS[plain.element_size()])
