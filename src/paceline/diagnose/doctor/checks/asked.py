"""Parse the settings of CUDA and NCCL as these libraries do: GPUs, versions, switches. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_gpu import Gpu
from paceline.diagnose.variables.setting import leading_number
from paceline.machine.gpus import visible_entries
from paceline.text.wording import few

# NCCL: src/graph/topo.h, topoPathTypeStr. Before version 2.4, numbers stood for the levels.
_LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")


def visible_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs visible to CUDA, which stops at the first entry that matches no GPU."""
    if facts.visible_devices is None:
        return facts.gpus
    entries = visible_entries(
        facts.visible_devices, lambda entry: named(entry, facts.gpus) is not None
    )
    gpus = [gpu for entry in entries if (gpu := named(entry, facts.gpus)) is not None]
    return tuple({gpu.index: gpu for gpu in gpus}.values())  # several slices may belong to one GPU


def named(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU for an entry of ``CUDA_VISIBLE_DEVICES``: an index, or the start of a UUID."""
    if not entry:
        return None
    if entry.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
    for gpu in gpus:
        ids = [gpu.uuid, *(part.uuid for part in gpu.mig_slices)]
        if any(uuid and uuid.startswith(entry) for uuid in ids):
            return gpu
    # The older form of a slice's UUID begins with that of its GPU: MIG-GPU-<id>/1/0
    return next((gpu for gpu in gpus if gpu.uuid and entry.startswith(f"MIG-{gpu.uuid}")), None)


def place(name: str, facts: Facts) -> str:
    """Return where a setting comes from: a file, or the environment."""
    return facts.settings_where.get(name) or f"environment variable {name}"


def is_on(value: str | None) -> bool:
    """Return whether NCCL reads a value as "on": any number except zero."""
    return leading_number(value or "") != 0  # a word such as true is 0


def p2p_level(settings: Mapping[str, str]) -> str:
    """Return the largest distance at which NCCL may use peer-to-peer; empty if NCCL decides.

    ``NCCL_P2P_DISABLE=1`` means ``LOC`` and takes precedence over ``NCCL_P2P_LEVEL``. NCCL ignores
    a misspelt level.
    """
    # NCCL compares with 1 here: any other number does not switch it off.
    if re.match(r"\s*\+?0*1(?!\d)", settings.get("NCCL_P2P_DISABLE", "")):
        return "LOC"
    text = settings.get("NCCL_P2P_LEVEL", "")
    if text[:1].isdigit():
        match = re.match(r"\d+", text)
        return _OLD_LEVELS[min(int(match[0]), len(_OLD_LEVELS) - 1)] if match else ""
    return text if text in _LEVELS else ""


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers: ``2.29.7`` is ``(2, 29, 7)``; empty if it is unknown."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def run_container(facts: Facts) -> str:
    """Return the command that starts this kind of container; podman takes docker's options."""
    return "podman run" if facts.host.container == "podman" else "docker run"


def gpus_in_words(gpus: Iterable[Gpu]) -> str:
    """Return a list of GPUs as text, such as ``GPU 0, GPU 3``."""
    return few([f"GPU {gpu.index}" for gpu in gpus], 8)
