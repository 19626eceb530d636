"""Pass a batch through the hooks that a script has around its way to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.train.data import to_device

NAMES = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
LIBRARIES = ("lightning", "paceline", "pytorch_lightning")  # whose own methods do nothing more


class BatchHooks:
    """The hooks with nothing in them, so that overriding methods may call ``super()``."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return a batch, changed before it is moved to the device."""
        return batch

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Return a batch on the device."""
        return to_device(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return a batch, changed on the device."""
        return batch


class Transfer:
    """The hooks of the data object, or else of the task, for each of ``NAMES``."""

    def __init__(self, owners: Sequence[Any], device: torch.device) -> None:
        self._before, self._move, self._after = (_own_hook(owners, name) for name in NAMES)
        self._device = device
        # whether a hook needs batches before they are on the device: they are then moved here
        # instead of by the loader, which moves the next batch during the step
        self.moves = self._before is not None or self._move is not None

    @property
    def is_plain(self) -> bool:
        """Whether there is no hook."""
        return not self.moves and self._after is None

    def __call__(self, batch: Any, dataloader_idx: int) -> Any:
        """Return a batch as a step gets it."""
        if self._before:
            batch = self._before(batch, dataloader_idx)
        if self._move:
            batch = self._move(batch, self._device, dataloader_idx)
        elif self.moves:
            batch = to_device(batch, self._device)
        return self._after(batch, dataloader_idx) if self._after else batch


def _own_hook(owners: Sequence[Any], name: str) -> Callable[..., Any] | None:
    """Return the method of the first owner that has one of its own; None without one."""
    for owner in owners:
        kind = next((base for base in type(owner).__mro__ if name in vars(base)), None)
        is_library = kind is None or kind.__module__.partition(".")[0] in LIBRARIES
        method = getattr(owner, name, None)
        if callable(method) and not is_library:
            hook: Callable[..., Any] = method
            return hook
    return None
