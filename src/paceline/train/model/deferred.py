"""Give values to a model that was built under ``torch.device("meta")``, one module at a time.

Modules are visited as a constructor makes them, the parts of a module before itself. Each gets
memory on the device, and its ``reset_parameters`` fills it. So all ranks draw the same random
numbers, on any number of ranks, and a rank never needs memory for more than one layer as a whole.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from paceline.errors import UsageError, option_invalid
from paceline.train import runtime
from paceline.train.model.sharded import is_dtensor


def is_deferred(model: nn.Module) -> bool:
    """Return whether some parameters or buffers of a model have no memory yet."""
    return any(tensor.is_meta for tensor in itertools.chain(model.parameters(), model.buffers()))


@torch.no_grad()
def materialize(
    model: nn.Module,
    device: torch.device,
    complete: Callable[[nn.Module], None] = lambda _: None,  # called with each module that is done
) -> dict[nn.Parameter, nn.Parameter]:
    """Give values to a model; return the new parameter of each one that had no memory.

    Parameters that have values already are moved to the device. Raises UsageError if a module
    does not initialize what it holds.
    """
    sharded = [name for name, one in model.named_parameters() if is_dtensor(one)]
    if sharded:
        raise _sharded_first(sharded[0])
    new: dict[nn.Parameter, nn.Parameter] = {}
    for module in _inner_first(model, set()):
        unset = _allocate(module, device, new)
        reset = getattr(module, "reset_parameters", None)
        if reset is None and unset:
            reset = getattr(module, "_reset_parameters", None)  # of nn.MultiheadAttention
        if reset is not None and (unset or not _holds_tensors(module)):
            _reset(module, reset)
        for name in unset:
            if reset is None or getattr(module, name).isnan().any():
                raise _not_set(module, name)
        complete(module)
    return new


def _inner_first(module: nn.Module, seen: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield each module once, after its parts."""
    seen.add(module)
    for child in module.children():
        if child not in seen:
            yield from _inner_first(child, seen)
    yield module


def _holds_tensors(module: nn.Module) -> bool:
    own = itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))
    return any(True for _ in own)


def _allocate(
    module: nn.Module, device: torch.device, new: dict[nn.Parameter, nn.Parameter]
) -> list[str]:
    """Give memory to a module's own tensors; return the names of those without values."""
    unset = []
    for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        if not parameter.is_meta:
            parameter.data = parameter.data.to(device)
            continue
        if parameter not in new:  # else it is tied to one that has its values
            new[parameter] = _like(parameter, device)
            unset.append(name)
        module.register_parameter(name, new[parameter])
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = (
            _without_values(buffer, device) if buffer.is_meta else buffer.to(device)
        )
        unset += [name] if buffer.is_meta else []
    return unset


def _like(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    values = _without_values(parameter, device)
    new = nn.Parameter(values, requires_grad=parameter.requires_grad)
    vars(new).update(vars(parameter))  # marks that a script has set
    return new


def _without_values(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return memory for a tensor: NaN where it can show that nothing has set it, else 0."""
    can_show = tensor.is_floating_point() or tensor.is_complex()
    fill = float("nan") if can_show else 0
    return torch.full_like(tensor, fill, device=device, requires_grad=False)


def _reset(module: nn.Module, reset: Callable[[], Any]) -> None:
    """Initialize a module, which must leave parts alone that are sharded already."""
    parameters: dict[str, Any] = dict(module.named_parameters())
    shards = {
        name: parameter.to_local().clone()
        for name, parameter in parameters.items()
        if is_dtensor(parameter)
    }
    with warnings.catch_warnings():
        # Of random numbers for shards on CPUs, which are refused below.
        warnings.filterwarnings("ignore", "DTensor random operators")
        reset()
    if not shards:
        return
    changed = [
        name
        for name, shard in shards.items()
        if not torch.equal(parameters[name].to_local(), shard)
    ]
    if runtime.maxima([len(changed)])[0]:  # a rank may have no rows of what has changed
        name = next(iter(changed or shards))
        raise option_invalid(
            f"reset_parameters of {type(module).__name__} sets parts that are sharded already,"
            f" such as {name}",
            where="session.setup(model)",
            why="each rank would draw other numbers for its shard",
            fix="initialize them in reset_parameters of the layer that holds them",
        )


def _sharded_first(name: str) -> UsageError:
    return option_invalid(
        f"{name} was sharded on the meta device, and has no values yet",
        where="session.setup(model)",
        fix="model.to_empty(device=...) and its initial values, before session.setup",
    )


def _not_set(module: nn.Module, name: str) -> UsageError:
    kind = type(module).__name__
    has_method = hasattr(module, "reset_parameters")
    method = "reset_parameters does not set it" if has_method else "it has no reset_parameters"
    return option_invalid(
        f"the model was built on the meta device, and nothing sets {name} of {kind}: {method}",
        where="session.setup(model)",
        fix=f"a method reset_parameters of {kind} that sets {name}",
    )
