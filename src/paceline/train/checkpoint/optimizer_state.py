"""Convert the state of an optimizer to entries under the names of its parameters, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.errors import UsageError


def of_optimizer(
    optimizer: Optimizer, number: int, names: Mapping[nn.Parameter, str]
) -> dict[str, Any]:
    """Return the state of an optimizer, keyed by the names of its parameters."""
    prefix = f"optimizer/{number}"
    entries: dict[str, Any] = {}
    plain: dict[str, dict[str, Any]] = {}
    # From state_dict, which hooks of an optimizer may change; its numbers follow the parameters'
    # order.
    state = optimizer.state_dict()
    order = [
        _name(names, parameter, optimizer)
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    name_of = dict(zip(numbers, order, strict=True))
    for key, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                entries[f"{prefix}/{name_of[key]}/{name}"] = value
            else:
                plain.setdefault(name_of[key], {})[name] = value
    groups = [
        {**group, "params": [name_of[number] for number in group["params"]]}
        for group in state["param_groups"]
    ]
    kind = type(optimizer).__name__
    return {**entries, f"{prefix}/groups": {"kind": kind, "groups": groups, "plain": plain}}


def targets_of_optimizer(
    # shape (``.shape``) and type (``.dtype``, as text) of the checkpoint's tensors
    saved: Mapping[str, Any],
    number: int,  # of the optimizer
    names: Mapping[nn.Parameter, str],  # of parameters
) -> dict[str, torch.Tensor]:
    """Return tensors to load sharded state into: shards for sharded parameters, else nothing."""
    targets = {}
    for parameter, name in names.items():
        if not hasattr(parameter, "device_mesh"):
            continue
        prefix = f"optimizer/{number}/{name}/"
        for key, info in saved.items():
            is_of_parameter = key.startswith(prefix) and "/" not in key[len(prefix) :]
            if is_of_parameter and tuple(info.shape) == tuple(parameter.shape):
                dtype = getattr(torch, str(info.dtype).removeprefix("torch."))
                targets[key] = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return targets


def _name(names: Mapping[nn.Parameter, str], parameter: nn.Parameter, optimizer: Optimizer) -> str:
    if parameter in names:
        return names[parameter]
    raise UsageError.of(
        "optimizer-of-other-model",
        f"{type(optimizer).__name__} holds a parameter of shape {list(parameter.shape)} that"
        " belongs to no model",
        where="session.save(...)",
        why="a checkpoint names optimizer state after parameters",
        fix="pass the model with this parameter to session.setup too",
    )


def load_optimizer(
    optimizer: Optimizer, number: int, names: Mapping[nn.Parameter, str], state: Mapping[str, Any]
) -> None:
    """Load the result of ``of_optimizer``.

    Raises UsageError if the checkpoint has no such optimizer, or its groups hold other parameters.
    """
    prefix = f"optimizer/{number}/"
    saved = state.get(f"{prefix}groups")
    if saved is None:
        raise _other(
            f"the checkpoint has no optimizer number {number} ({type(optimizer).__name__})"
        )
    order = _matching_groups(optimizer, saved, names)
    flat = (name for group in order for name in group)
    numbers = {name: place for place, name in enumerate(flat)}
    values: dict[int, dict[str, Any]] = {
        numbers[name]: dict(plain) for name, plain in saved["plain"].items() if name in numbers
    }
    for key, value in state.items():
        if key.startswith(prefix) and key != f"{prefix}groups":
            name, _, kind = key[len(prefix) :].rpartition("/")
            values.setdefault(numbers[name], {})[kind] = value
    groups = [
        {**group, "params": [numbers[name] for name in present]}
        for group, present in zip(saved["groups"], order, strict=True)
    ]
    for group, own in zip(groups, optimizer.param_groups, strict=True):
        if "foreach" in own:  # how it is computed here, not what
            group["foreach"] = own["foreach"]
    optimizer.load_state_dict({"state": values, "param_groups": groups})


def _matching_groups(
    optimizer: Optimizer, saved: Mapping[str, Any], names: Mapping[nn.Parameter, str]
) -> list[list[str]]:
    """Return the names of the parameters in each group; refuse the groups of another optimizer."""
    kind = type(optimizer).__name__
    if saved["kind"] != kind:
        raise _other(f"the checkpoint is of {saved['kind']}, and the optimizer is {kind}")
    order = [
        [_name(names, parameter, optimizer) for parameter in group["params"]]
        for group in optimizer.param_groups
    ]
    in_checkpoint = [group["params"] for group in saved["groups"]]
    if [sorted(group) for group in order] != [sorted(group) for group in in_checkpoint]:
        raise _other(
            f"the groups of {kind} hold other parameters than those in the checkpoint",
            evidence=(f"now: {_sizes(order)}", f"in the checkpoint: {_sizes(in_checkpoint)}"),
        )
    return order


def _sizes(groups: Sequence[Sequence[str]]) -> str:
    return ", ".join(
        f"{len(group)} parameters from {group[0] if group else 'nothing'}" for group in groups
    )


def _other(what: str, evidence: tuple[str, ...] = ()) -> UsageError:
    return UsageError.of(
        "checkpoint-other-model",
        what,
        where="session.restore(...)",
        evidence=evidence,
        why="its momenta would go to the wrong parameters",
        fix="set up the model and its optimizers as they were when the checkpoint was saved",
    )
