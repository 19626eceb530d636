"""The ranks over which the data is shared out: all of them, or those of dimensions of a mesh.

torch owns the parallelism of a model: tensor parallel, ``fully_shard``, or both, over a
``DeviceMesh``. A session shares the rows of a batch out over the mesh's *data* dimensions only.
Ranks that differ in another dimension are peers: they get the same rows, and compute parts of one
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from paceline import env
from paceline.errors import option_contradicted, option_invalid
from paceline.world import World

_WHERE = "Session(mesh=..., data=...)"


@dataclass(frozen=True)
class DataRanks:
    """The ranks that share out the data with this one; a rank's peers see the same rows."""

    world: World  # rank and world size count these ranks; the rest is that of the process
    group: dist.ProcessGroup | None = None  # of these ranks; None: all
    mesh: DeviceMesh | None = None  # None: all ranks share out the data
    dims: tuple[str, ...] = ()  # data dimensions of the mesh

    @property
    def has_peers(self) -> bool:
        """Whether other ranks see the same rows as this one."""
        return self.mesh is not None and self.mesh.size() > self.world.world_size

    def groups_of_dims(self) -> dict[str, list[int]]:
        """Return the global ranks of this rank's group in each data dimension."""
        assert self.mesh is not None
        return {name: dist.get_process_group_ranks(self.mesh.get_group(name)) for name in self.dims}

    def submesh(self) -> DeviceMesh | None:
        """Return the data dimensions as a mesh; None without one."""
        return None if self.mesh is None else self.mesh[self.dims]

    def describe(self) -> str:
        """Return the mesh as a phrase, ``mesh dp 2 x tp 2, data over dp``; empty without one."""
        if self.mesh is None:
            return ""
        return f"mesh {_sizes(self.mesh)}, data over {' and '.join(self.dims) or 'no dimension'}"

    def layout(self) -> dict[str, Any] | None:
        """Return names, sizes and data dimensions as plain data; None without a mesh."""
        if self.mesh is None:
            return None
        return {
            "dims": dict(zip(_names(self.mesh), self.mesh.shape, strict=True)),
            "data": list(self.dims),
        }


def data_ranks(
    mesh: DeviceMesh | Mapping[str, int] | None,
    data: str | tuple[str, ...],
    *,
    world: World,
    device: torch.device,
) -> DataRanks:
    """Return the ranks that share out the data; a collective if the mesh is given by its sizes.

    Raises UsageError if the mesh has no names, not all ranks or no such data dimensions.
    """
    if mesh is None:
        return DataRanks(world)
    if isinstance(mesh, Mapping):
        mesh = _made(mesh, world, device)
    _check(mesh, world)
    dims = (data,) if isinstance(data, str) else tuple(data)
    unknown = [name for name in dims if name not in _names(mesh)]
    if unknown:
        raise option_invalid(
            f"the mesh has no dimension {unknown[0]!r}: it is {_sizes(mesh)}",
            where=_WHERE,
            why="the rows of a batch are shared out over the data dimensions only",
            fix=f"data={_names(mesh)[0]!r}, a tuple of several, or data=() for none",
        )
    in_order = tuple(name for name in _names(mesh) if name in dims)
    group, rank, size = _group_of(mesh, in_order)
    return DataRanks(replace(world, rank=rank, world_size=size), group, mesh, in_order)


def _made(sizes: Mapping[str, int], world: World, device: torch.device) -> DeviceMesh:
    """Return a mesh of these sizes, of which one may be -1: what remains of the ranks."""
    given, product = dict(sizes), 1
    if world.world_size == 1 and (env.read(env.VERIFY) or env.read(env.PROOF)):
        given = dict.fromkeys(sizes, 1)  # ``paceline verify`` and ``run --prove`` look at one rank
    for size in given.values():
        product *= size if size > 0 else 1
    unknown = [name for name, size in given.items() if size == -1]
    is_valid = all(size > 0 or size == -1 for size in given.values()) and len(unknown) < 2
    if unknown and not world.world_size % product:
        given[unknown[0]] = world.world_size // product
        product = world.world_size
    if not is_valid or product != world.world_size:
        ranks = "1 rank" if world.world_size == 1 else f"{world.world_size} ranks"
        raise option_contradicted(
            f"a mesh of {dict(sizes)} does not hold {ranks}",
            where=_WHERE,
            fix=f"start {product} ranks, or a multiple with one size of -1"
            if is_valid
            else 'sizes from 1 on, one of them may be -1: mesh={"dp": -1, "tp": 2}',
        )
    # Else the mesh may choose another device than this rank has taken.
    torch.empty(1, device=device)
    return init_device_mesh(device.type, tuple(given.values()), mesh_dim_names=tuple(given))


def _check(mesh: Any, world: World) -> None:
    if not isinstance(mesh, DeviceMesh):
        raise option_invalid(
            f"mesh={mesh!r} is neither a DeviceMesh nor a dict of sizes by name",
            where=_WHERE,
            fix='mesh={"dp": -1, "tp": 2}',
        )
    if not mesh.mesh_dim_names:
        raise option_invalid(
            "the dimensions of the mesh have no names, so nothing says which of them have other"
            " rows",
            where=_WHERE,
            fix='init_device_mesh(..., mesh_dim_names=("dp", "tp"))',
        )
    if mesh.size() != world.world_size:
        raise option_contradicted(
            f"the mesh has {mesh.size()} ranks, and the run {world.world_size}",
            where=_WHERE,
            fix="a mesh of all ranks; the models may be on parts of it",
        )


def _group_of(mesh: DeviceMesh, dims: tuple[str, ...]) -> tuple[dist.ProcessGroup | None, int, int]:
    """Return the group over some dimensions, this rank's place in it, and its size."""
    shape = dict(zip(_names(mesh), mesh.shape, strict=True))
    place = dict(zip(_names(mesh), mesh.get_coordinate() or (), strict=True))
    index, size = 0, 1
    for name in dims:
        index, size = index * shape[name] + place[name], size * shape[name]
    if size == mesh.size():
        group = None
    elif len(dims) == 1:
        group = mesh.get_group(dims[0])
    else:
        others = [name for name in _names(mesh) if name not in dims]
        order = [_names(mesh).index(name) for name in (*others, *dims)]
        table = mesh.mesh.permute(order).reshape(-1, size).tolist()
        group, _ = dist.new_subgroups_by_enumeration(table)
    if dist.get_rank(group) != index:
        raise option_contradicted(
            f"rank {dist.get_rank()} is number {index} of the data dimensions, and number"
            f" {dist.get_rank(group)} of their process group",
            where=_WHERE,
            why="torch orders a group by rank, and the mesh is in another order",
            fix="a mesh whose ranks ascend in each dimension, as from init_device_mesh",
        )
    return group, index, size


def _names(mesh: DeviceMesh) -> tuple[str, ...]:
    return mesh.mesh_dim_names or ()


def _sizes(mesh: DeviceMesh) -> str:
    return " x ".join(f"{name} {size}" for name, size in zip(_names(mesh), mesh.shape, strict=True))
