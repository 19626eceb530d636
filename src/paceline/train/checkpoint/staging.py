"""Copy a state into CPU buffers before it is written, so that training can change it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch


class Staging:
    """Copies of tensors on the CPU, in buffers that are reused.

    Args:
        device: Device of this rank's tensors; for a GPU the buffers are pinned.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pin = device.type == "cuda"
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def copy(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
        """Copy tensors.

        Returns:
            The copies by name, and a function to call before reading them. Copies from a GPU are
            queued on its current stream.
        """
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._buffers[name].copy_(tensor, non_blocking=self._pin)
        if not self._pin:
            return self._buffers, _nothing
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return self._buffers, event.synchronize

    def clear(self) -> None:
        """Release the buffers."""
        self._buffers = {}

    def _buffer(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is not None and buffer.shape == tensor.shape and buffer.dtype == tensor.dtype:
            return buffer
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=self._pin)


def _nothing() -> None:
    """Do nothing: copies on the CPU are complete at once."""
