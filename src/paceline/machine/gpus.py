"""Count the GPUs that ranks would use: their models, and which of them are visible to CUDA.

No function here creates a CUDA context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from paceline.machine.nvml import Nvml


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this machine that this user may open."""

    models: tuple[str, ...] = ()  # the model of each GPU; empty for a GPU that does not answer
    driver: str = ""  # version of NVIDIA's driver


def gather() -> Gpus | None:
    """Return the GPUs of this machine; None if no NVIDIA driver answers."""
    try:
        with Nvml() as nvml:
            handles = [handle for handle, _ in nvml.handles()]
            models = tuple(
                nvml.text("nvmlDeviceGetName", handle) if handle else "" for handle in handles
            )
            return Gpus(models, nvml.text("nvmlSystemGetDriverVersion"))
    except Exception:  # no library, no driver, no device: NVML raises for each
        return None


@dataclass(frozen=True)
class Load:
    """What a GPU is doing."""

    index: int  # its number, as nvidia-smi shows it
    # share of the last second in which a kernel ran, 0 to 1; None if unknown
    utilization: float | None
    memory_used: int | None  # in bytes; None if unknown
    memory_total: int | None  # in bytes; None if unknown


def loads() -> list[Load]:
    """Return what each GPU of this machine is doing; empty if no NVIDIA driver answers."""
    try:
        with Nvml() as nvml:
            handles = [handle for handle, _ in nvml.handles()]
            return [_load(nvml, place, handle) for place, handle in enumerate(handles) if handle]
    except Exception:  # no library, no driver, no device: NVML raises for each
        return []


def _load(nvml: Nvml, place: int, handle: Any) -> Load:
    index = nvml.ask("nvmlDeviceGetIndex", handle)
    rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    return Load(
        index=place if index is None else index,
        utilization=rates.gpu / 100 if rates else None,
        memory_used=memory.used if memory else None,
        memory_total=memory.total if memory else None,
    )


def count(visible_devices: str | None) -> tuple[int, str]:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES shows (None if unset), and the reason."""
    gpus = gather()
    if gpus is None:
        return 0, "no NVIDIA driver answers"
    total = len(gpus.models)
    if visible_devices is None:
        return total, "GPUs of the machine"

    def is_gpu(entry: str) -> bool:
        return entry.startswith(("GPU-", "MIG-")) or (entry.isdecimal() and int(entry) < total)

    return len(visible_entries(visible_devices, is_gpu)), f"CUDA_VISIBLE_DEVICES={visible_devices}"


def entries(visible_devices: str) -> list[str]:
    """Return the entries of ``CUDA_VISIBLE_DEVICES`` without an empty last one."""
    words = [word.strip() for word in visible_devices.split(",")]
    return words if words[-1] else words[:-1]


def visible_entries(visible_devices: str, is_gpu: Callable[[str], bool]) -> list[str]:
    """Return the entries of ``CUDA_VISIBLE_DEVICES`` that are visible to CUDA.

    CUDA stops at the first entry that names no GPU, and shows no GPU if an entry is repeated
    (see ``torch.cuda._parse_visible_devices``).
    """
    leading = list(takewhile(is_gpu, entries(visible_devices)))
    has_duplicates = len(set(leading)) < len(leading)
    return [] if has_duplicates else leading
