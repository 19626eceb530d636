"""Choose the mesh, policies and parameters with which ``fully_shard`` is called: fsdp's options.

Pure but for ``mesh_of``, which makes process groups, and ``average``, which reduces gradients.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer

from paceline.errors import closest, option_contradicted, option_invalid
from paceline.train.model.sharded import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from paceline.train.model.mesh import DataRanks
    from paceline.train.model.precision import Precision


@dataclass(frozen=True)
class FSDP:
    """Every rank holds a shard of parameters, gradients and optimizer state (``fully_shard``).

    Attributes:
        layers: Classes of the modules that are gathered and freed one at a time. None means the
            entries of every ``ModuleList`` that is not inside such an entry, or else of a top-level
            ``Sequential``, without those that share a parameter with another part of the model.
        reshard_after_forward: Whether a layer is freed between forward and backward: less memory,
            more traffic.
        replicate: Number of replicas of the model, each sharded over an equal number of ranks that
            follow each other, such as those of a node (HSDP).
        offload: Whether parameters, gradients and optimizer state are kept in the memory of the
            CPU; without effect if it computes on the CPU.
        mixed_precision: torch's policy of the types in which layers compute and gradients are
            reduced, beside ``precision="32-true"``. None means the session's precision.
        ignored_params: Parameters, or names of parameters or modules, that every rank holds whole.
            Their gradients are averaged when a step is complete.
    """

    layers: tuple[type[nn.Module], ...] | None = None
    reshard_after_forward: bool = True
    replicate: int = 1
    offload: bool = False
    mixed_precision: MixedPrecisionPolicy | None = None
    ignored_params: Collection[nn.Parameter | str] = field(default=(), compare=False)


def check(options: FSDP, precision: Precision, data: DataRanks) -> None:
    """Refuse options of fsdp that do not fit each other, the precision, or the number of ranks.

    Every number of replicas fits one rank, which shards nothing.
    """
    replicas, world_size = options.replicate, data.world.world_size
    if data.mesh is not None and replicas != 1:
        raise option_contradicted(
            "the mesh says over which ranks the model is replicated",
            where="FSDP(replicate=...)",
            fix='Session(mesh={"dp": 2, "fsdp": -1}, data=("dp", "fsdp"))',
        )
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
        raise option_invalid(
            f"replicate={replicas!r} is not a number of replicas",
            where="FSDP(replicate=...)",
            fix="FSDP(replicate=2): two replicas, each sharded over half of the ranks",
        )
    if world_size > 1 and world_size % replicas:
        fitting = max(number for number in range(1, replicas) if world_size % number == 0)
        raise option_invalid(
            f"{world_size} ranks cannot be divided into {replicas} replicas of equal size",
            where=f"FSDP(replicate={replicas})",
            fix=f"FSDP(replicate={fitting}), or a multiple of {replicas} ranks",
        )
    if options.mixed_precision is not None:
        _check_mixed(options.mixed_precision, precision)


def _check_mixed(policy: Any, precision: Precision) -> None:
    if not hasattr(policy, "param_dtype"):
        raise option_invalid(
            f"mixed_precision={policy!r} is not a policy of torch",
            where="FSDP(mixed_precision=...)",
            fix="torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        )
    if precision.computed is not None:
        raise option_contradicted(
            f"precision={precision.name!r} and mixed_precision= both say in which type to compute",
            where="FSDP(mixed_precision=...)",
            fix="leave out one of them",
        )
    if torch.float16 in (policy.param_dtype, policy.reduce_dtype):
        raise option_contradicted(
            "gradients underflow in float16, and this policy has no loss scale",
            where="FSDP(mixed_precision=...)",
            fix='Session(precision="16-mixed") without mixed_precision=, or torch.bfloat16 in it',
        )


def mesh_of(options: FSDP, device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks; a collective. The ranks of a replica follow each other."""
    num_ranks, replicas = dist.get_world_size(), options.replicate
    if replicas == 1:
        return init_device_mesh(device.type, (num_ranks,))
    shape = (replicas, num_ranks // replicas)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def policies(options: FSDP, device: torch.device) -> dict[str, Any]:
    """Return the arguments of ``fully_shard`` that do not depend on the model."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    arguments: dict[str, Any] = {"reshard_after_forward": options.reshard_after_forward}
    if options.mixed_precision is not None:
        arguments["mp_policy"] = options.mixed_precision
    if options.offload and device.type != "cpu":
        arguments["offload_policy"] = CPUOffloadPolicy()
    return arguments


def ignored_names(model: nn.Module, ignored: Collection[nn.Parameter | str]) -> set[str]:
    """Return the names of a model's parameters that shall not be sharded, each with all its names.

    Raises UsageError if the model has no such parameter.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    held: set[nn.Parameter] = set()
    for item in ignored:
        is_name = isinstance(item, str)
        matching = [
            parameter
            for name, parameter in named.items()
            if (f"{name}.".startswith(f"{item}.") if is_name else parameter is item)
        ]
        if not matching:
            raise _unknown(model, item, named)
        held.update(matching)
    return {name for name, parameter in named.items() if parameter in held}


def _unknown(model: nn.Module, item: Any, named: dict[str, nn.Parameter]) -> Exception:
    is_name = isinstance(item, str)
    what = repr(item) if is_name else f"a {type(item).__name__} that is not its own"
    near = closest(item, named) if is_name else None
    return option_invalid(
        f"{type(model).__name__} has no parameter {what}",
        where="FSDP(ignored_params=...)",
        fix=f"FSDP(ignored_params={{{near or next(iter(named), 'weight')!r}}})",
    )


@torch.no_grad()
def average(parameters: Collection[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Average the gradients of parameters that fsdp ignores; a collective.

    A parameter that took part on some ranks only has a gradient of zeros on the others.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for kind in dict.fromkeys((parameter.dtype, parameter.device) for parameter in trained):
        same = [parameter for parameter in trained if (parameter.dtype, parameter.device) == kind]
        grads = [_zeros(one) if one.grad is None else one.grad for one in same]
        took_part = torch.tensor([float(one.grad is not None) for one in same]).to(grads[0])
        flat = torch.cat([took_part, *(grad.reshape(-1) for grad in grads)])
        dist.all_reduce(flat, group=group)
        counts, *means = flat.split([len(same), *(grad.numel() for grad in grads)])
        for parameter, count, mean in zip(same, counts.tolist(), means, strict=True):
            if count:
                parameter.grad = (mean / dist.get_world_size(group)).view_as(parameter)


def _zeros(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def step_one_by_one(optimizer: Optimizer) -> None:
    """Make an optimizer step parameters one by one where a group has whole ones beside shards.

    torch steps many at once on GPUs, and cannot do so with both kinds. Raises UsageError if the
    optimizer has an option that requires it.
    """
    for group in filter(_is_mixed, optimizer.param_groups):
        if group.get("foreach") or group.get("fused"):
            raise option_contradicted(
                f"{type(optimizer).__name__} steps all parameters of a group at once, and torch"
                " cannot do so with shards and whole parameters",
                where="session.setup(model, optimizer)",
                fix="a separate group, or an optimizer without foreach=True and fused=True",
            )
        if "foreach" in group:
            group["foreach"] = False


def _is_mixed(group: dict[str, Any]) -> bool:
    return len(set(map(is_dtensor, group["params"]))) > 1
