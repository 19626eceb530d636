"""Compute checksums of a rank's parameters, which the launcher compares with other ranks'."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from paceline import counters
from paceline.launch.probe.parameters import in_shards, names_of
from paceline.rundir.files import write_whole

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ReplicaCheck:
    """Write checksums of this rank's parameters to the counters and to a file.

    The check runs before the next step and not after the last one, so that everything that follows
    a step, such as a broadcast of parameters, is done.

    Args:
        slot: The rank's counters.
        every: Steps between two checks.
        file: File for the checksums of each parameter.
    """

    def __init__(self, slot: memoryview[int], every: int, file: Path) -> None:
        self._slot, self._every, self._file = slot, every, file
        self._parameters: Any = WeakTensorKeyDictionary()
        self._lists: dict[
            int, tuple[int, list[int]]
        ] = {}  # by level, as in the counters: step and sums
        self._shards: set[int] | None = None
        self._last = 0

    def follow(self, parameters: Iterable[torch.Tensor]) -> None:
        """Check these parameters too."""
        for parameter in parameters:
            self._parameters[parameter] = None

    def before_step(self, *_: Any) -> None:
        """Check, if the steps made so far are a multiple of N."""
        step = self._slot[counters.STEPS]
        if step % self._every or step == self._last:
            return
        self._last = step
        parameters = self._comparable()
        sums = checksums(parameters)
        for level in range(counters.CHECK_LEVELS):
            if step // self._every % (1 << level) == 0:
                self._lists[level] = (step, sums)
        named = zip(names_of(parameters), parameters, strict=True)
        content = {
            "names": [f"{name} {list(parameter.shape)}" for name, parameter in named],
            "steps": {str(step): sums for step, sums in self._lists.values()},
        }
        with contextlib.suppress(OSError):  # a full disk must not end a run
            write_whole(self._file, json.dumps(content))
        counters.write_check(
            self._slot, number=step // self._every, step=step, checksum=combined(sums)
        )

    def _comparable(self) -> list[torch.Tensor]:
        """Return the parameters that must be the same on all ranks: those that are not sharded."""
        if self._shards is None:
            self._shards = {id(shard) for shard in in_shards()}
        tensors = list(self._parameters.keys())
        plain = [tensor for tensor in tensors if not hasattr(tensor, "_local_tensor")]
        return [tensor for tensor in plain if id(tensor) not in self._shards]


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
