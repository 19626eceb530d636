"""The module ``torch.emulated``, with the functions that torch asks of a device's module."""

import contextlib
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from emulated import build

NAME = "emulated"
_KNOBS = {
    "devices": 2,
    "copy_ms": 0.0,
    "kernel_ms": 0.0,
    "event_ms": 0.0,
    "memory": 1 << 30,
    "fault_after": -1,
}
extension: Any = None


def register() -> None:
    """Make the device known to torch; torch calls it at the end of its own import."""
    global extension
    if extension is not None:
        return
    extension = build.load()
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _keep_parameters()
    dist.Backend.register_backend(NAME, _process_group, devices=[NAME])
    text = os.environ.get("EMULATED_DEVICE", "")
    configure(**{name: float(value) for name, value in (part.split("=") for part in text.split())})


def configure(**changed: float) -> None:
    """Set the knobs that are named, the others to their defaults (``csrc/runtime.h``)."""
    knobs = {**_KNOBS, **changed}
    kinds = {name: type(value) for name, value in _KNOBS.items()}
    extension.configure(*(kinds[name](value) for name, value in knobs.items()))


def delay(milliseconds: float) -> None:
    """Occupy the current stream for that time; returns at once."""
    extension.delay(milliseconds)


def _keep_parameters() -> None:
    """Let ``module.to`` keep the parameters that an optimizer holds, as it does for torch's own devices.

    For a device of another package torch makes new ones, since ``.data`` takes no tensor of it.
    """
    plain = torch.Tensor.data

    def set_data(tensor: torch.Tensor, other: torch.Tensor) -> None:
        if (
            NAME in (tensor.device.type, other.device.type)
            and tensor.device.type != other.device.type
        ):
            extension.set_data(tensor, other)
        else:
            plain.__set__(tensor, other)

    def are_compatible(input: torch.Tensor, from_: torch.Tensor) -> bool:
        return input.layout == from_.layout

    torch.Tensor.data = property(plain.__get__, set_data)  # type: ignore[assignment]
    torch._has_compatible_shallow_copy_type = are_compatible  # type: ignore[assignment]


def _process_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return extension.over_gloo(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))


def _is_in_bad_fork() -> bool:
    return bool(extension.in_bad_fork())


def is_initialized() -> bool:
    return bool(extension.begun())


def init() -> None:
    extension.begin()


def is_available() -> bool:
    return True


def device_count() -> int:
    return int(extension.device_count())


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    torch.accelerator.set_device_index(_index(device))


@contextlib.contextmanager
def device(chosen: Any) -> Iterator[None]:
    former = current_device()
    set_device(chosen)
    try:
        yield
    finally:
        set_device(former)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_device_name(device: Any = None) -> str:
    return "emulated accelerator"


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(_index(device))


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def Stream(device: Any = None, priority: int = 0) -> torch.Stream:
    return torch.Stream(torch.device(NAME, _index(device)), priority=priority)


def Event(enable_timing: bool = False, **_: Any) -> torch.Event:
    return torch.Event(NAME, enable_timing=enable_timing)


def stream(chosen: torch.Stream | None) -> Any:
    return contextlib.nullcontext() if chosen is None else chosen


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    stats = torch.accelerator.memory_stats(_index(device))
    figures = {name: stats[f"allocated_bytes.all.{name}"] for name in ("current", "peak")}
    return {"allocated_bytes": {"all": figures}}


def get_device_properties(device: Any = None) -> SimpleNamespace:
    _, total = torch.accelerator.get_memory_info(_index(device))
    return SimpleNamespace(name=get_device_name(), total_memory=total)


def manual_seed(seed: int) -> None:
    extension.default_generator(current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for device in range(device_count()):
        extension.default_generator(device).manual_seed(int(seed))


def get_rng_state(device: Any = None) -> torch.Tensor:
    return extension.default_generator(_index(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(device) for device in range(device_count())]


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    extension.default_generator(_index(device)).set_state(state)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index
