"""What a pass over a batch begins with: parameters, buffers, gradients and random generators.

Every pass of a proof begins with the same. Parameters and buffers are those of all living modules,
so also of a loss, a teacher or a moving average, and what optimizers hold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from paceline.machine import accelerator
from paceline.machine.parameters import modules, names_of
from paceline.train.data import device_random_state, set_device_random_state

# Layers that normalize with statistics of the batch, which have a line of their own in a run.
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
Gradients = dict[int, torch.Tensor]  # by the place of the parameter


class TrainingState:
    """The state of this rank's training."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._modules = [module for module in modules() if not _is_lazy(module)]
        held = [p for each in optimizers for group in each.param_groups for p in group["params"]]
        of_modules = [p for each in self._modules for p in each.parameters(recurse=False)]
        every = {id(p): p for p in (*of_modules, *held)}
        # parameters that are trained
        self.parameters = [p for p in every.values() if p.requires_grad]
        self.names = names_of(self.parameters)
        # a script may put another tensor in the place of a buffer
        self._buffers = [
            (module, name, buffer)
            for module in self._modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        tensors = {**every, **{id(buffer): buffer for *_, buffer in self._buffers}}
        self._tensors = [tensor for tensor in tensors.values() if not tensor.is_meta]

    def to_double(self) -> None:
        """Convert all floating-point numbers to float64; the tensors remain the same objects."""
        for tensor in self._tensors:
            if tensor.is_floating_point():
                gradient, tensor.grad = tensor.grad, None
                tensor.data = tensor.data.double()
                tensor.grad = None if gradient is None else gradient.double()

    def keep(self) -> None:
        """Keep the state as it is now."""
        self._values = [tensor.detach().clone() for tensor in self._tensors]
        self._gradients = self.gradients()
        self._device = torch.device(accelerator.kind_in_use())
        self._random = device_random_state(self._device)

    def restore(self) -> None:
        """Restore what was kept, and let DistributedDataParallel average nothing."""
        for tensor, value in zip(self._tensors, self._values, strict=True):
            tensor.data.copy_(value)
        for module, name, buffer in self._buffers:
            module._buffers[name] = buffer
        self.set_gradients(self._gradients)
        set_device_random_state(self._random, self._device)
        parallel: Any = sys.modules.get("torch.nn.parallel.distributed")
        for module in self._modules:
            # its buckets have the types of before
            if parallel is not None and isinstance(module, parallel.DistributedDataParallel):
                module.require_backward_grad_sync = module.require_forward_param_sync = False

    def gradients(self) -> Gradients:
        """Return copies of the gradients that parameters have."""
        return {
            place: parameter.grad.detach().clone()
            for place, parameter in enumerate(self.parameters)
            if parameter.grad is not None
        }

    def set_gradients(self, gradients: Gradients) -> None:
        """Give the parameters copies of some gradients."""
        for place, parameter in enumerate(self.parameters):
            gradient = gradients.get(place)
            parameter.grad = None if gradient is None else gradient.clone()

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return copies of all buffers, but those of batch norm, which have a line of their own."""
        statistics = {}
        for place, (module, name, _) in enumerate(self._buffers):
            buffer = module._buffers.get(name)
            if buffer is not None and not buffer.is_meta and not isinstance(module, _NORMS):
                statistics[f"{name} of {type(module).__name__} ({place})"] = buffer.detach().clone()
        return statistics

    def has_drawn_elsewhere(self) -> bool:
        """Return whether Python's or NumPy's generator has been drawn from."""
        now = device_random_state(self._device)
        return any(repr(now[name]) != repr(self._random[name]) for name in ("python", "numpy"))


def _is_lazy(module: nn.Module) -> bool:
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(nn.parameter.is_lazy(tensor) for tensor in tensors if tensor is not None)


def added(before: Gradients, after: Gradients, *, rounded: torch.dtype | None) -> Gradients:
    """Return what a backward has added to gradients, as dense tensors, of a type if given."""
    changes = {}
    for place, gradient in after.items():
        change = _dense(gradient)
        if place in before:
            change = change - _dense(before[place])
        if place not in before or bool(change.count_nonzero()):
            changes[place] = change if rounded is None else change.to(rounded)
    return changes


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if tensor.layout != torch.strided else tensor
