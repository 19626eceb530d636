"""How a model is made parallel: copies whose gradients are averaged (ddp), or shards (fsdp).

torch's own wrappers do the work; here are their options.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.comm_hooks import PowerSGD, narrow_hook, powersgd_hook
from paceline.errors import Finding, UsageError, closest

COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")


@dataclass(frozen=True)
class DDP:
    """Every rank holds the model; gradients are averaged while backward runs.

    Attributes:
        bucket_cap_mb: Gradients that are reduced together, in MiB; torch's default (25) if None.
        static_graph: Whether the same parameters take part in every step, which lets DDP skip the search.
        gradient_as_bucket_view: Whether gradients live in the buckets, which saves their size in memory.
        find_unused_parameters: Whether some parameters take no part in some steps.
        comm_hook: What is sent: ``"none"`` the gradients as they are, ``"fp16"`` and ``"bf16"`` at half the size,
            ``"powersgd"`` low-rank factors (Vogels et al., 2019), which changes the result a little.
        powersgd_rank: Rank of these factors.
        powersgd_start: Steps that send full gradients first.
        sync_batchnorm: Whether batch norm takes its statistics from all ranks; on GPUs only.
    """

    bucket_cap_mb: int | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    comm_hook: str = "none"
    powersgd_rank: int = 1
    powersgd_start: int = 10
    sync_batchnorm: bool = False


@dataclass(frozen=True)
class FSDP:
    """Every rank holds a shard of parameters, gradients and optimizer state (``fully_shard``).

    Attributes:
        layers: Classes of the modules that are gathered and freed one at a time; None: the entries of every
            ``ModuleList``, or else of a top-level ``Sequential``.
        reshard_after_forward: Whether a layer is freed between forward and backward: less memory, more traffic.
    """

    layers: tuple[type[nn.Module], ...] | None = None
    reshard_after_forward: bool = True


Strategy = DDP | FSDP


def choose(strategy: str | Strategy, device: torch.device) -> Strategy:
    """Return the strategy of a name, or the one that was given.

    Raises:
        UsageError: There is none of this name, or its options do not fit.
    """
    named: dict[str, Strategy] = {"ddp": DDP(), "fsdp": FSDP()}
    chosen = named.get(strategy) if isinstance(strategy, str) else strategy
    if not isinstance(chosen, DDP | FSDP):
        near = closest(str(strategy), named) or "ddp"
        what = f"strategy={strategy!r} is neither 'ddp' nor 'fsdp' nor one of paceline.DDP and paceline.FSDP"
        raise UsageError(Finding("option-invalid", what, where="Session(strategy=...)", fix=f'strategy="{near}"'))
    if isinstance(chosen, DDP):
        _check(chosen, device)
    return chosen


def _check(options: DDP, device: torch.device) -> None:
    if options.comm_hook not in COMM_HOOKS:
        near = closest(str(options.comm_hook), COMM_HOOKS) or "bf16"
        what = f"comm_hook={options.comm_hook!r} is not one of {', '.join(COMM_HOOKS)}"
        raise UsageError(Finding("option-invalid", what, where="DDP(comm_hook=...)", fix=f'comm_hook="{near}"'))
    if options.sync_batchnorm and device.type != "cuda":
        raise UsageError(
            Finding(
                "option-contradicted",
                "torch synchronises batch norm on GPUs only, and this rank computes on the CPU",
                where="DDP(sync_batchnorm=True)",
                fix="leave it out, or use nn.GroupNorm or nn.LayerNorm, which need no other rank's rows",
            )
        )


def replicate(model: nn.Module, options: DDP) -> DistributedDataParallel:
    """Return a plain ``DistributedDataParallel`` around a model; all ranks then have rank 0's parameters."""
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    wrapped = DistributedDataParallel(
        model,
        static_graph=options.static_graph,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        find_unused_parameters=options.find_unused_parameters,
        bucket_cap_mb=options.bucket_cap_mb,
    )
    # DDP would synchronise buffers in the next forward, and so make a collective of an evaluation; we do it after
    # backward. Set here, because the argument of this name also skips the start from rank 0's buffers, and is
    # deprecated, while its successor is younger than the oldest torch we run on.
    wrapped.broadcast_buffers = False
    if options.comm_hook == "powersgd":
        wrapped.register_comm_hook(PowerSGD(options.powersgd_rank, options.powersgd_start), powersgd_hook)
    elif options.comm_hook != "none":
        dtype = torch.float16 if options.comm_hook == "fp16" else torch.bfloat16
        wrapped.register_comm_hook(None, narrow_hook(dtype))
    return wrapped


def shard(model: nn.Module, options: FSDP, device: torch.device) -> dict[nn.Parameter, nn.Parameter]:
    """Shard a model in place; return what became of its parameters."""
    from torch.distributed.fsdp import fully_shard  # takes most of a second, which only those pay who shard

    names = {parameter: name for name, parameter in model.named_parameters()}
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in _layers(model, options.layers):
        fully_shard(layer, mesh=mesh, reshard_after_forward=options.reshard_after_forward)
    fully_shard(model, mesh=mesh, reshard_after_forward=options.reshard_after_forward)
    shards = dict(model.named_parameters())
    return {whole: shards[name] for whole, name in names.items()}


def replace_parameters(optimizer: Optimizer, shards: dict[nn.Parameter, nn.Parameter]) -> None:
    """Let an optimizer that was made before update the shards."""
    for group in optimizer.param_groups:
        group["params"] = [shards.get(parameter, parameter) for parameter in group["params"]]


def _layers(model: nn.Module, classes: tuple[type[nn.Module], ...] | None) -> list[nn.Module]:
    if classes is not None:
        found = [each for each in model.modules() if isinstance(each, classes) and each is not model]
    else:
        found = [each for lists in model.modules() if isinstance(lists, nn.ModuleList) for each in lists]
        if not found and isinstance(model, nn.Sequential):
            found = list(model.children())
    return [each for each in found if any(True for _ in each.parameters())]
