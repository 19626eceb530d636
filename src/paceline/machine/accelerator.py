"""The accelerator of this process through ``torch.accelerator``: CUDA, ROCm, XPU or another.

``torch.cuda`` is used elsewhere only for what is CUDA's own: docs/reference/gpu-readiness.md
lists the places.
"""

from __future__ import annotations

import sys
from typing import Any

from paceline import env


def kind() -> str:
    """Return the type of device that ranks compute on: this machine's accelerator, or ``"cpu"``.

    Apple's MPS is left out, since torch has no collectives for it. An empty
    ``CUDA_VISIBLE_DEVICES``, which hides GPUs in every fix of ours, hides any other too.
    """
    import torch

    if env.visible_devices() == "":
        return "cpu"
    found = torch.accelerator.current_accelerator()
    if found is None or found.type == "mps" or not torch.accelerator.is_available():
        return "cpu"
    return found.type


def module_in_use() -> Any:
    """Return torch's module of the accelerator that this process uses, such as ``torch.cuda``.

    Returns None if the process has not begun to use one. Imports and initializes nothing.
    """
    accelerator: Any = sys.modules.get("torch.accelerator")
    torch: Any = sys.modules.get("torch")
    if accelerator is None or not hasattr(torch, "get_device_module"):  # torch is being imported
        return None
    found = accelerator.current_accelerator()
    if found is None or found.type == "mps":
        return None
    module = torch.get_device_module(found)
    return module if module.is_initialized() else None


def kind_in_use() -> str:
    """Return the type of the accelerator that this process uses; ``"cpu"`` if none."""
    import torch

    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None or module_in_use() is None else found.type


def is_capturing() -> bool:
    """Return whether the current stream is captured as a graph, so that no value may be read."""
    module = module_in_use()
    ask = getattr(module, "is_current_stream_capturing", None)  # CUDA's and ROCm's
    return ask is not None and bool(ask())
