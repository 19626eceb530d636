"""Open and close the process group, choose the device, and provide a few collectives.

The group is torch's default process group. In a world of one there is no group, and every
collective is the identity.
"""

from __future__ import annotations

import atexit
import functools
import gc
import numbers
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from paceline import env
from paceline.errors import SetupError, UsageError, option_contradicted, option_invalid
from paceline.machine import accelerator, nodeaddr
from paceline.machine.references import keep_until_exit
from paceline.machine.signed_store import SignedStore
from paceline.machine.signing import Signing
from paceline.text.quoting import bracketed
from paceline.world import World

Group = dist.ProcessGroup | None  # None: all ranks, the default group

_spared: list[bool] = []  # whether _spare_children has run
_calls: Counter[tuple[str, int]] = Counter()
_own: Counter[str] = Counter()  # collectives by purpose
_opened: list[dist.ProcessGroup | None] = []  # at most one: the group that close_group destroys


def actual_world(world: World) -> World:
    """Return ``world``, or that of the default process group if the script has initialized one.

    ``local_rank`` is kept if ``world`` has the size of that group. Otherwise the group is assumed
    to be on one node, as after ``torch.multiprocessing.spawn``.
    """
    if not dist.is_initialized() or _is_ours():
        return world
    reason = "the default process group was already initialised"
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == world.world_size:
        return replace(world, rank=rank, reason=reason)
    return World(rank, size, rank, size, launcher=world.launcher, reason=reason)


def take_device(world: World) -> torch.device:
    """Return this rank's device, the GPU of its local rank or the CPU, and make it the current one.

    Any accelerator of torch is a GPU here. Raises SetupError if there are GPUs, but fewer than
    ranks on this node.
    """
    kind = accelerator.kind()
    if kind == "cpu":
        return torch.device("cpu")
    num_gpus = torch.accelerator.device_count()
    index = 0 if num_gpus == 1 and _has_own_gpu(world) else world.local_rank
    if index >= num_gpus and world.launcher == "slurm":
        raise SetupError.of(
            "slurm-ntasks-mismatch",
            f"Slurm started {world.local_world_size} tasks on this node, and {num_gpus} GPUs"
            " are visible to them",
            where=f"rank {world.rank}, {world.reason}",
            why="one task is one rank, and each rank needs its own GPU",
            fix=(
                f"#SBATCH --ntasks-per-node={num_gpus}, or #SBATCH"
                f" --gpus-per-node={world.local_world_size}"
            ),
        )
    if index >= num_gpus:
        raise SetupError.of(
            "gpus-fewer-than-processes",
            f"local rank {world.local_rank} has no GPU: {num_gpus} visible, "
            f"{world.local_world_size} ranks on this node",
            where=f"rank {world.rank}",
            fix=(
                f"start {num_gpus} ranks on a node; or, to use no GPU: export CUDA_VISIBLE_DEVICES="
            ),
        )
    torch.accelerator.set_device_index(index)
    return torch.device(kind, index)


def _has_own_gpu(world: World) -> bool:
    """Return whether the one GPU that this rank sees may be its own and not the node's only one.

    Slurm can bind a GPU to each task, which then sees it as number 0. With mpirun a script around
    each task does so by the variable.
    """
    return world.launcher == "slurm" or (
        world.launcher == "mpi" and env.read(env.CUDA_DEVICES) is not None
    )


def open_group(
    world: World,
    device: torch.device,
    *,
    timeout_s: float | None = None,
    of_one: bool = False,  # also in a world of one, as a device mesh needs it
) -> None:
    """Initialize torch's default process group, and close it at the end of a script that succeeds.

    Does nothing in a world of one, or if a default group exists; an existing group is left open. On
    GPUs the group also reduces CPU tensors, over gloo. ``timeout_s`` is that of collectives;
    torch's default if None (gloo 1800, NCCL 600). Raises UsageError if it is not positive, or is
    given although a group exists.
    """
    _check_timeout(timeout_s)
    _spare_children()
    if dist.is_initialized() or (world.world_size == 1 and not of_one):
        return
    # A node's name in Slurm may not resolve; a job script may have set MASTER_ADDR and RANK itself.
    other_in_slurm = world.launcher in ("torchrun", "mpi") and env.read(env.JOB_ID)
    of_slurm = world.launcher == "slurm" or other_in_slurm
    address = nodeaddr.of_node(world.master_addr) if of_slurm else world.master_addr
    dist.init_process_group(
        _backend(device),
        init_method=f"tcp://{bracketed(address)}:{world.master_port}" if address else None,
        store=None if address else cast(Any, dist).HashStore(),
        rank=world.rank,
        world_size=world.world_size,
        timeout=None if timeout_s is None else timedelta(seconds=timeout_s),
        # NCCL connects early. torch makes no gloo group beside one that is bound to another device.
        device_id=device if device.type == "cuda" else None,
    )
    _opened[:] = [dist.group.WORLD]
    keep_until_exit(dist.group.WORLD)  # both backends have a gloo group
    atexit.register(_close_at_exit)


def _spare_children() -> None:
    """Keep forked children, such as loader workers, from collecting inherited garbage.

    A DDP in the garbage holds its process group, whose destructor waits for threads that a fork
    does not copy: the worker would hang forever (seen with torch 2.13 and gloo). This also keeps
    inherited memory shared.
    """
    if not _spared and hasattr(os, "register_at_fork"):
        _spared.append(True)
        os.register_at_fork(after_in_child=gc.freeze)


def keep_groups() -> None:
    """Never free the process groups that exist, because the script may end without destroying them.

    Destroying them works as before.
    """
    if dist.is_initialized():
        for group in dist.distributed_c10d._world.pg_map:
            keep_until_exit(group)


def close_group() -> None:
    """Destroy the default process group if ``open_group`` made it; may be called again."""
    if _is_ours():
        dist.destroy_process_group()
    _opened.clear()


def sum_over_ranks(value: Any, group: Group = None) -> Any:
    """Return the sum of ``value`` over the ranks of a group, in the same type.

    Every rank of it must call this with the same structure: an int (summed exactly), a float (in
    float64), a tensor of any shape (the same on all ranks), or a dict, list or tuple of them. A
    bool counts as the int 0 or 1. Tensors of booleans or narrow integers are summed and returned as
    int64, as by ``torch.sum``; others keep their dtype. Raises UsageError for another type.
    """
    if isinstance(value, torch.Tensor):
        return _sum_tensor(value.full_tensor() if hasattr(value, "full_tensor") else value, group)
    if isinstance(value, numbers.Integral):
        return _sum_int(int(value), group)
    if isinstance(value, numbers.Real):
        return sum_of_numbers(torch.tensor(float(value), dtype=torch.float64), group).item()
    if isinstance(value, Mapping):
        # Ranks may have filled their dicts in different orders.
        parts = dict(value.items())  # the iterator of a TensorDict yields rows
        sums = {key: sum_over_ranks(parts[key], group) for key in sorted(parts, key=repr)}
        return {key: sums[key] for key in parts}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(sum_over_ranks(part, group) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(sum_over_ranks(part, group) for part in value)
    raise UsageError.of(
        "option-invalid",
        f"{type(value).__name__} cannot be summed over ranks",
        fix="pass a number, a tensor, or a dict, list or tuple of them",
    )


def sum_of_numbers(tensor: torch.Tensor, group: Group = None) -> torch.Tensor:
    """Return the sum over the ranks of a group of a tensor that holds no gradients."""
    _own["numbers"] += dist.is_initialized()
    return _sum_tensor(tensor, group)


def rank(group: Group = None) -> int:
    """Return this process's rank in a process group; 0 if there is none."""
    return dist.get_rank(group) if dist.is_initialized() else 0


def num_ranks() -> int:
    """Return the number of ranks in the default process group; 1 without a group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def totals(values: list[int], group: Group = None) -> list[int]:
    """Return the element-wise sums of a few small ints over the ranks, in one collective."""
    return _reduced(values, dist.ReduceOp.SUM, group) if dist.is_initialized() else values


def maxima(values: list[int]) -> list[int]:
    """Return the element-wise maxima of a few small ints over all ranks, in one collective."""
    return _reduced(values, dist.ReduceOp.MAX) if dist.is_initialized() else values


def spread(values: Sequence[float]) -> float:
    """Return how far apart ranks are in one of a few numbers, at most; a collective."""
    both = torch.tensor([*values, *(-value for value in values)], dtype=torch.float64)
    both = both.to(_reducible(both.device))
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    greatest, least = both.cpu().chunk(2)
    return float((greatest + least).max())


def num_own_collectives() -> int:
    """Return how many collectives of this module so far had numbers that are no gradients."""
    return _own["numbers"]


def _reduced(values: list[int], how: Any, group: Group = None) -> list[int]:
    _own["numbers"] += 1
    tensor = torch.tensor(values, device=_reducible(torch.device("cpu")))
    dist.all_reduce(tensor, op=how, group=group)
    return [int(number) for number in tensor.tolist()]


def all_rows(tensor: torch.Tensor, group: Group = None) -> tuple[torch.Tensor, list[int]]:
    """Return the rows of a group's ranks, concatenated by rank, and each rank's number of rows.

    ``tensor`` has the shape ``[rows, ...]``. The number of rows may differ between ranks; other
    dimensions may differ only on ranks without rows. Raises UsageError on all ranks if shapes or
    types differ.
    """
    if not dist.is_initialized():
        return tensor.detach(), [len(tensor)]
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    table = [0] * (2 * size)
    table[rank], table[size + rank] = len(tensor), zlib.crc32(repr(_kind(tensor)).encode())
    table = totals(table, group)
    sizes, kinds = table[:size], table[size:]
    if len(set(kinds)) > 1:
        tensor = _as_the_others(tensor, sizes, group)
    mine = tensor.detach().to(_reducible(tensor.device)).contiguous()
    longest = max(sizes)
    padded = mine.new_zeros((longest, *mine.shape[1:]))
    padded[: len(mine)] = mine
    # As bytes, because backends support different types.
    if padded.numel():
        flat = padded.view(-1).view(torch.uint8)
    else:
        flat = padded.new_zeros(0, dtype=torch.uint8)
    parts = [torch.empty_like(flat) for _ in sizes]
    dist.all_gather(parts, flat, group=group)
    rows = [
        part.view(mine.dtype).view(padded.shape)[:size]
        for part, size in zip(parts, sizes, strict=True)
    ]
    return torch.cat(rows).to(tensor.device), sizes


def _kind(tensor: torch.Tensor) -> tuple[list[int], torch.dtype, str]:
    return list(tensor.shape[1:]), tensor.dtype, tensor.device.type


def _as_the_others(tensor: torch.Tensor, sizes: list[int], group: Group) -> torch.Tensor:
    """Return a tensor without rows in the shape and type of those with rows; others unchanged."""
    kinds: list[Any] = [None] * len(sizes)
    dist.all_gather_object(kinds, _kind(tensor), group=group)
    with_rows = [rank for rank, size in enumerate(sizes) if size] or [0]
    shape, dtype, device = kinds[with_rows[0]]
    different = [rank for rank in with_rows if kinds[rank] != kinds[with_rows[0]]]
    if different:
        evidence = [
            "rank {}: rows of shape {}, {}, on {}".format(rank, *kinds[rank])
            for rank in (with_rows[0], different[0])
        ]
        raise option_invalid(
            "ranks gather rows that do not fit together",
            where="session.gather(...)",
            evidence=tuple(evidence),
            fix="pass tensors that differ in the number of rows only",
        )
    return tensor if len(tensor) else torch.empty((0, *shape), dtype=dtype, device=device)


def store() -> SignedStore:
    """Return the store of the default process group; ranks sign there if they have a secret."""
    return SignedStore(dist.distributed_c10d._get_default_store(), _signing())


@functools.cache
def _signing() -> Signing:
    secret = env.read(env.STORE_SECRET) or ""
    return Signing(secret.encode(), token=env.read(env.RUN_TOKEN) or "")


def number_of_call(name: str) -> int:
    """Return how often this rank has called this for a name, in worlds of this size.

    For names of keys. Ranks agree on it without the store, whose counters anybody may change.
    """
    _calls[name, num_ranks()] += 1
    return _calls[name, num_ranks()]


@torch.no_grad()
def copy_from_main(tensors: Iterable[torch.Tensor], group: Group = None) -> None:
    """Overwrite ``tensors`` by those of a group's rank 0, with a broadcast per dtype and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        dist.broadcast(flat, group=group, group_src=0)
        if dist.get_rank(group) == 0:
            continue
        for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
            # Through .data, because a second backward may still need the buffer: batch norm saves
            # its running statistics, and autograd would refuse a newer version than the saved one.
            tensor.data.copy_(part.view_as(tensor))


def bytes_of(rank: int, content: bytes) -> bytes:
    """Return the bytes of one rank, on all ranks; ``content`` is ignored on the others."""
    device = _reducible(torch.device("cpu"))
    length = torch.tensor([len(content)], device=device)
    dist.broadcast(length, src=rank)
    box = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if content and dist.get_rank() == rank:
        box.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dist.broadcast(box, src=rank)
    return box.cpu().numpy().tobytes()


def is_of_collective(error: RuntimeError) -> bool:
    """Return whether a collective failed because of another rank or the connection to it."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def barrier() -> None:
    """Wait until all ranks have called this function."""
    if dist.is_initialized():
        _own["numbers"] += 1
        dist.barrier()


def group_timeout() -> timedelta | None:
    """Return the timeout of the default group, for other groups; None is torch's default."""
    # torch exposes it in no other way.
    try:
        group: Any = dist.group.WORLD
        return cast(timedelta, group._get_backend(torch.device("cpu")).options._timeout)
    except (AttributeError, RuntimeError):
        return None


def backends() -> dict[str, str]:
    """Return the backend of each type of device, as ``{"cpu": "gloo"}``; empty without a group."""
    if not dist.is_initialized():
        return {}
    return dict(part.split(":", 1) for part in dist.get_backend_config().split(","))


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is None:
        return
    if not timeout_s > 0:
        raise option_invalid(
            f"timeout_s={timeout_s} is not a positive number of seconds",
            where="Session(timeout_s=...)",
            fix="Session(timeout_s=1800)",
        )
    if dist.is_initialized():
        raise option_contradicted(
            "timeout_s has no effect: the default process group is open already, with its own",
            where="Session(timeout_s=...)",
            fix="give the timeout where it is opened: init_process_group(timeout=timedelta(...))",
        )


def _is_ours() -> bool:
    # Not a flag: the script may have destroyed our group and initialized another.
    return dist.is_initialized() and dist.group.WORLD in _opened


def _close_at_exit() -> None:
    # After an uncaught exception collectives may be in flight, and destroying the group would wait
    # for ranks that never arrive. The interpreter, and paceline's worker entry, then set
    # sys.last_type.
    if not hasattr(sys, "last_type"):
        close_group()


def _backend(device: torch.device) -> str:
    """Return the backends of the default group: the device's own, and gloo for CPU tensors."""
    if device.type == "cpu" or (device.type == "cuda" and not dist.is_nccl_available()):
        return "gloo"
    own = dist.get_default_backend_for_device(device)
    return f"cpu:gloo,{device.type}:{own}"


def _sum_tensor(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    keeps_dtype = tensor.is_floating_point() or tensor.is_complex()
    dtype = tensor.dtype if keeps_dtype else torch.int64
    total = tensor.detach().to(_reducible(tensor.device), dtype, copy=True).contiguous()
    if dist.is_initialized():
        dist.all_reduce(total, group=group)
    return total.to(tensor.device)


def _sum_int(value: int, group: Group) -> int:
    # Two halves of 32 bits, because sums of int64 overflow early: with five time stamps in ns.
    high, low = sum_of_numbers(torch.tensor([value >> 32, value & 0xFFFFFFFF]), group).tolist()
    return int((high << 32) + low)


def _reducible(device: torch.device) -> torch.device:
    """Return ``device``, or the current GPU if an existing group cannot reduce on ``device``."""
    if not dist.is_initialized() or device.type in backends():
        return device
    return torch.device(accelerator.kind(), torch.accelerator.current_device_index())
