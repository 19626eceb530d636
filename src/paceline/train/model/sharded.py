"""Models that the user has made parallel: parameters that are ``DTensor``, and what they share.

A ``DTensor`` is a shard or a copy, by dimension of its own mesh. Here is what differs from plain
parameters: what must begin equal on which ranks, who averages gradients, and how gradients of
different meshes are treated together, which torch's list functions refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import nn

from paceline.errors import UsageError, option_contradicted
from paceline.train.model.mesh import DataRanks

_WHERE = "session.setup(model)"


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a DTensor, a collective; else the tensor itself."""
    return cast(torch.Tensor, cast(Any, tensor).full_tensor()) if is_dtensor(tensor) else tensor


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device; DTensors are on that of their mesh, and stay.

    ``Module.to`` would replace them, which it cannot where something refers to them.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if not any(map(is_dtensor, tensors)):
        model.to(device)
        return
    for tensor in tensors:
        if not is_dtensor(tensor) and tensor.device != device:
            tensor.data = tensor.data.to(device)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, which shares its memory; else the tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return cast(torch.Tensor, cast(Any, tensor).to_local())


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """Return this rank's parts of the gradients that exist."""
    return [local_of(parameter.grad) for parameter in parameters if parameter.grad is not None]


def complete_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up gradients of which each rank holds a summand, such as those of sequence parallel.

    torch leaves them ``Partial`` until something reads them. Their local values would be wrong.
    """
    for parameter in parameters:
        gradient: Any = parameter.grad
        if is_dtensor(gradient) and any(part.is_partial() for part in gradient.placements):
            placements = cast(Any, parameter).placements
            parameter.grad = gradient.redistribute(placements=placements)


def averages_itself(model: nn.Module, data: DataRanks) -> bool:
    """Return whether the user's ``fully_shard`` averages gradients over all data dimensions.

    If False, nothing averages them over any. Raises UsageError if it is neither, or the model is on
    the data dimensions without ``fully_shard``.
    """
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    dims = data.groups_of_dims()
    covered = {
        name: [dim for dim, ranks in dims.items() if _is_over(parameter, set(ranks))]
        for name, parameter in trained.items()
    }
    most = max(covered, key=lambda name: len(covered[name]), default="")
    if not most or not covered[most]:
        return False
    least = min(covered, key=lambda name: len(covered[name]))
    missing = [dim for dim in dims if dim not in covered[least]]
    quoted = ", ".join(repr(dim) for dim in dims)
    whole = f"fully_shard(model, mesh=mesh[{quoted}])"
    if missing:
        raise option_contradicted(
            f"{most} is sharded over {' and '.join(covered[most])}, and {least} is not on"
            f" {' and '.join(missing)}",
            where=_WHERE,
            why="gradients have to be averaged over all data dimensions, by one of two",
            fix=f"{whole}, also for its blocks; or none, and session.setup averages them",
        )
    if not any(_is_fully_sharded(module) for module in model.modules()):
        raise UsageError.of(
            "gradients-not-averaged",
            f"{most} is a DTensor over {' and '.join(covered[most])}, and fully_shard was not"
            " called",
            where=_WHERE,
            why="nothing is known to average its gradients over the rows of other ranks",
            fix=f"{whole}, or parallelize_module(model, mesh[DIM]) on other dimensions only",
        )
    return True


def _is_over(parameter: Any, ranks: set[int]) -> bool:
    """Return whether a parameter is a DTensor on a mesh that has all of these ranks in a row."""
    if not is_dtensor(parameter):
        return False
    mesh = parameter.device_mesh
    rows = (dist.get_process_group_ranks(mesh.get_group(dim)) for dim in range(mesh.ndim))
    return any(ranks <= set(row) for row in rows)


def _is_fully_sharded(module: nn.Module) -> bool:
    # By name: importing torch's class takes most of a second.
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


class Copies(NamedTuple):
    """Tensors that a group's ranks hold alike."""

    group: dist.ProcessGroup | None  # None: all ranks
    tensors: list[torch.Tensor]  # this rank's own


def copies_of(model: nn.Module, data: DataRanks) -> Iterator[Copies]:
    """Yield what must be equal on which ranks; together, that makes a model equal on all.

    Plain parameters are equal on all ranks. Buffers may belong to a part of a layer, and are equal
    where the rows differ. A DTensor is equal along each dimension of its mesh that replicates it,
    and over the data dimensions if it is not on them.
    """
    parameters = list(model.parameters())
    yield Copies(None, [one for one in parameters if not is_dtensor(one)])
    yield Copies(data.group, [one for one in model.buffers() if not is_dtensor(one)])
    groups: dict[dist.ProcessGroup | None, list[torch.Tensor]] = {}
    dims = data.groups_of_dims().values()
    for parameter in (one for one in parameters if is_dtensor(one)):
        own: Any = parameter
        for dim, placement in enumerate(own.placements):
            if placement.is_replicate():
                groups.setdefault(own.device_mesh.get_group(dim), []).append(local_of(own))
        if not any(_is_over(own, set(ranks)) for ranks in dims):
            groups.setdefault(data.group, []).append(local_of(own))
    yield from (Copies(group, tensors) for group, tensors in groups.items())


def piece_of(tensor: Any) -> tuple[Any, ...] | None:
    """Return which piece of a DTensor this rank holds; None if no other rank holds it too."""
    if not is_dtensor(tensor):
        return None
    mesh = tensor.device_mesh
    if not any(place.is_replicate() for place in tensor.placements):
        return None
    coordinates = mesh.get_coordinate()
    return tuple(
        (str(place), coordinate)
        for place, coordinate in zip(tensor.placements, coordinates, strict=True)
        if not place.is_replicate()
    )
