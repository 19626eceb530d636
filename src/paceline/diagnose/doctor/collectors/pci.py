"""Collect the access control of PCI bridges above GPUs, and the mode of the IOMMU."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from paceline.diagnose.doctor.facts_gpu import AcsBridge, Gpu
from paceline.machine import files

_PCI = Path("/sys/bus/pci/devices")
_ACS_CAPABILITY = 0x000D
_ACS_CONTROL = 6  # offset of the control register in the capability
# Redirections that send traffic between GPUs up to the CPU.
# Source: PCI Express base specification, ACS control register.
_REDIRECTS = ((2, "request"), (3, "completion"), (4, "upstream"))


def gather_bridges(gpus: Sequence[Gpu], pci: Path = _PCI) -> tuple[AcsBridge, ...] | None:
    """Return the bridges with access control above GPUs; None if this user may not read them."""
    above: dict[str, list[int]] = {}
    for gpu in gpus:
        for bridge in _bridges_above(pci / gpu.bus_id) if gpu.bus_id else ():
            above.setdefault(bridge, []).append(gpu.index)
    with_control, readable = [], 0
    for bridge, below in sorted(above.items()):
        config = _read_config(pci / bridge / "config")
        readable += len(config) > 256  # without privileges only the first 64 bytes are readable
        control = acs_control(config)
        if control is not None:
            words = tuple(word for bit, word in _REDIRECTS if control >> bit & 1)
            with_control.append(AcsBridge(bridge, tuple(below), words))
    return tuple(with_control) if readable or not above else None


def _bridges_above(device: Path) -> list[str]:
    """Return the bridges between a device and the CPU: the parents of the device's folder."""
    try:
        parts = Path(os.path.realpath(device)).parts[:-1]
    except OSError:
        return []
    return [part for part in parts if part.count(":") == 2]


def _read_config(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register in a PCI configuration space; None if absent or cut off."""
    offset = 0x100
    for _ in range(48):  # a longer list would be circular
        if offset < 0x100 or offset + 8 > len(config):
            return None
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_CAPABILITY:
            return int(struct.unpack_from("<H", config, offset + _ACS_CONTROL)[0])
        if header in (0, 0xFFFFFFFF):
            return None
        offset = header >> 20
    return None


def gather_iommu(gpus: Sequence[Gpu], pci: Path = _PCI) -> str:
    """Return how the IOMMU treats the GPUs' traffic: ``translated``, ``passthrough`` or ``off``."""
    kinds = {
        files.text(pci / gpu.bus_id / "iommu_group" / "type")
        for gpu in gpus
        if gpu.bus_id and (pci / gpu.bus_id).exists()
    }
    if not kinds:
        return ""
    if any(kind.startswith("DMA") for kind in kinds):
        return "translated"
    if "identity" in kinds:
        return "passthrough"
    return "off" if kinds == {""} else ""
