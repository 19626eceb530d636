"""Make a model parallel by ddp (replicas with averaged gradients) or fsdp (shards), with options.

torch's own wrappers do the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.errors import SetupError, closest, option_contradicted, option_invalid
from paceline.train import runtime
from paceline.train.model import deferred, fsdp_options
from paceline.train.model.blocks import blocks_of, has_forward
from paceline.train.model.sharded import is_dtensor, whole_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class DDP:
    """Every rank holds the model; gradients are averaged during backward.

    Attributes:
        bucket_cap_mb: Size of gradient buckets that are reduced together, in MiB; torch's default
            (25) if None.
        static_graph: Whether the same parameters take part in every step, so that DDP need not
            search for them.
        gradient_as_bucket_view: Whether gradients are views of the buckets, which saves their
            memory.
        find_unused_parameters: Whether some parameters take no part in some steps.
        sync_batchnorm: Whether batch norm computes its statistics over all ranks; on GPUs only.
    """

    bucket_cap_mb: int | None = None
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    sync_batchnorm: bool = False


FSDP = fsdp_options.FSDP
Strategy = DDP | FSDP


def choose(strategy: str | Strategy, device: torch.device) -> Strategy:
    """Return the strategy of a name, or the given strategy."""
    named: dict[str, Strategy] = {"ddp": DDP(), "fsdp": FSDP()}
    options = named.get(strategy) if isinstance(strategy, str) else strategy
    if not isinstance(options, DDP | FSDP):
        near = closest(str(strategy), named) or "ddp"
        what = (
            f"strategy={strategy!r} is neither 'ddp' nor 'fsdp' nor a paceline.DDP or paceline.FSDP"
        )
        raise option_invalid(what, where="Session(strategy=...)", fix=f'strategy="{near}"')
    if isinstance(options, DDP):
        _check(options, device)
    return options


def _check(options: DDP, device: torch.device) -> None:
    size = options.bucket_cap_mb
    if size is not None and (not isinstance(size, int) or size < 1):
        what = f"bucket_cap_mb={size!r} is not a whole number from 1 on"
        raise option_invalid(what, where="DDP(bucket_cap_mb=...)", fix="bucket_cap_mb=25")
    if options.sync_batchnorm and device.type == "cpu":
        raise option_contradicted(
            "torch synchronises batch norm on GPUs only, and this rank computes on the CPU",
            where="DDP(sync_batchnorm=True)",
            fix=(
                "leave it out, or use nn.GroupNorm or nn.LayerNorm, which need no other rank's rows"
            ),
        )


def check_whole(model: nn.Module) -> None:
    """Refuse a model that is sharded already, which a session without a mesh cannot start from."""
    sharded = [name for name, parameter in model.named_parameters() if is_dtensor(parameter)]
    if sharded:
        raise option_contradicted(
            f"{len(sharded)} parameters of the model are sharded already, {sharded[0]} first",
            where="session.setup(model)",
            why="without a mesh, nothing says which ranks have other rows",
            fix=(
                "Session(mesh=mesh, data=...) if the script has sharded it; if a session has, make"
                " the model again for a second one, which restores what the first has saved"
            ),
        )


def replicate(
    model: nn.Module, options: DDP, group: runtime.Group = None
) -> DistributedDataParallel:
    """Return a ``DistributedDataParallel`` around a model, over a group or all ranks.

    Its ranks get the parameters of the first of them.
    """
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    wrapped = DistributedDataParallel(
        model,
        process_group=group,
        static_graph=options.static_graph,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        find_unused_parameters=options.find_unused_parameters,
        bucket_cap_mb=options.bucket_cap_mb,
    )
    # DDP would synchronize buffers in the next forward, which would make an evaluation a
    # collective; we do it after backward. The attribute is set here, because the argument of this
    # name also skips the initial copy of rank 0's buffers and is deprecated, and its successor is
    # newer than the oldest supported torch.
    wrapped.broadcast_buffers = False
    return wrapped


def replicate_sharded(
    model: nn.Module, options: DDP, mesh: DeviceMesh
) -> dict[nn.Parameter, nn.Parameter]:
    """Average the gradients of a model in place that the user has made tensor parallel.

    ``mesh`` has the data dimensions. Returns what each parameter has become: a DTensor over these
    dimensions too. torch does it with the means of ``fully_shard``, and without shards:
    ``DistributedDataParallel`` takes no DTensors. Raises UsageError if the torch is too old, or
    options are given that only that class knows.
    """
    try:
        from torch.distributed._composable.replicate_with_fsdp import replicate as replicated
    except ImportError:
        raise SetupError.of(
            "library-version-mismatch",
            f"torch {torch.__version__} cannot replicate a tensor-parallel model",
            where="session.setup(model)",
            fix='a newer torch, or Session(strategy="fsdp")',
        ) from None
    if options != DDP():
        raise option_contradicted(
            "DDP(...) has options, and DistributedDataParallel takes no tensor-parallel model",
            where="Session(strategy=...)",
            fix='strategy="ddp", which replicates it in another way, or "fsdp"',
        )
    # Of shards, which there are none of here; the user has not called fully_shard.
    warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(Replicate")
    flat = mesh if mesh.ndim == 1 else mesh._flatten()
    names = {parameter: name for name, parameter in model.named_parameters()}
    for layer in (*_layers(model, None), model):
        replicated(layer, mesh=flat)
    return _replaced(model, names)


def shard(
    model: nn.Module, options: FSDP, device: torch.device, mesh: DeviceMesh | None = None
) -> dict[nn.Parameter, nn.Parameter]:
    """Shard a model in place; return the shard of each parameter.

    ``mesh`` has one dimension, over which is sharded, or two with names: replicas and shards. None
    means all ranks. A model on the meta device gets its values here, those of rank 0.
    """
    from torch.distributed.fsdp import fully_shard  # the import takes most of a second

    ignored = fsdp_options.ignored_names(model, options.ignored_params)
    _check_scalars(model, ignored)
    names = {parameter: name for name, parameter in model.named_parameters()}
    mesh = mesh or fsdp_options.mesh_of(options, device)
    layers = [*_layers(model, options.layers), model]
    arguments = fsdp_options.policies(options, device)

    def shard_one(module: nn.Module) -> None:
        whole = {name: value for name, value in model.named_parameters() if name in ignored}
        fully_shard(module, mesh=mesh, ignored_params=set(whole.values()), **arguments)

    def complete(module: nn.Module) -> None:
        if module in layers:
            tensors = [*module.parameters(), *module.buffers()]
            runtime.copy_from_main([one for one in tensors if not is_dtensor(one)])
            shard_one(module)

    if deferred.is_deferred(model):
        deferred.materialize(model, device, complete)
    else:
        for layer in layers:
            shard_one(layer)
    return _replaced(model, names)


def _replaced(model: nn.Module, names: dict[nn.Parameter, str]) -> dict[nn.Parameter, nn.Parameter]:
    """Return the present parameter for each earlier one, whose names are given."""
    present = dict(model.named_parameters())
    return {earlier: present[name] for earlier, name in names.items()}


def move_state(optimizer: Optimizer, device: torch.device) -> None:
    """Move what an optimizer remembers to the device of its parameters, which were moved before.

    As torch does with a state that it loads: a step count, of no dimension, stays.
    """

    def moved(value: Any) -> Any:
        if isinstance(value, list):  # of LBFGS
            return [moved(part) for part in value]
        is_moved = isinstance(value, torch.Tensor) and value.dim() > 0
        return value.to(device) if is_moved else value

    for state in optimizer.state.values():
        state.update({name: moved(value) for name, value in state.items()})


def replace_parameters(optimizer: Optimizer, shards: dict[nn.Parameter, nn.Parameter]) -> None:
    """Make an existing optimizer update the shards, and shard its state.

    Raises UsageError if the optimizer cannot work on shards, or its state cannot be sharded.
    """
    if isinstance(optimizer, torch.optim.LBFGS) and _holds_shards(optimizer, shards):
        raise option_contradicted(
            "LBFGS makes one vector of all gradients, of which a rank has shards only",
            where="session.setup(model, optimizer)",
            fix=(
                'strategy="ddp", or an optimizer that treats each parameter separately, such'
                " as AdamW"
            ),
        )
    for group in optimizer.param_groups:
        for whole in group["params"]:
            shard = shards.get(whole, whole)
            if shard is whole or whole not in optimizer.state:
                continue
            state = optimizer.state.pop(whole)
            is_cut = is_dtensor(shard)
            optimizer.state[shard] = _cut(state, shard, optimizer) if is_cut else state
        # In place, because some optimizers hold this list in a second place.
        group["params"][:] = [shards.get(parameter, parameter) for parameter in group["params"]]


def _holds_shards(optimizer: Optimizer, shards: dict[nn.Parameter, nn.Parameter]) -> bool:
    pairs = shards.items()
    sharded = {one for pair in pairs if hasattr(pair[1], "device_mesh") for one in pair}
    return any(
        parameter in sharded for group in optimizer.param_groups for parameter in group["params"]
    )


def _cut(state: dict[str, Any], parameter: nn.Parameter, optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer state of a parameter as its shard's; each rank cuts its part locally."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    shards = dict(state)
    for name, kept in state.items():
        if not isinstance(kept, torch.Tensor) or kept.dim() == 0:
            continue  # a step count is the same for each shard
        value = whole_of(kept)
        if value.shape != parameter.shape:
            raise option_contradicted(
                f"{type(optimizer).__name__} remembers {name} of shape {list(value.shape)} for"
                f" a parameter of shape {list(parameter.shape)}, and nothing says how to cut it"
                " into shards",
                where="session.setup(model, optimizer)",
                fix=(
                    'strategy="ddp", or an optimizer whose state has the shape of its'
                    " parameters, such as AdamW"
                ),
            )
        cut = distribute_tensor(
            value, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        shards[name] = cut.to(parameter.device)  # the CPU's memory, where it is offloaded
    return shards


def _check_scalars(model: nn.Module, ignored: Collection[str]) -> None:
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() == 0 and name not in ignored
    ]
    if names:
        raise option_contradicted(
            f"{names[0]} is a parameter without a dimension, and fsdp cuts parameters along"
            " their first",
            where="session.setup(model)",
            fix=f"{names[0]} = nn.Parameter(torch.zeros(1))",
        )


def _layers(model: nn.Module, classes: tuple[type[nn.Module], ...] | None) -> list[nn.Module]:
    """Return the layers to gather separately, inner ones first: an outer one gets the rest."""
    if classes is None:
        layers = _default_layers(model)
    else:
        layers = [layer for layer in model.modules() if isinstance(layer, classes)]
        layers = [layer for layer in layers if layer is not model]
        _check_layers(model, layers)
    used = [layer for layer in dict.fromkeys(layers) if any(True for _ in layer.parameters())]
    return sorted(used, key=lambda layer: sum(1 for _ in layer.modules()))


def _default_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers to gather separately if the user names none."""
    layers = blocks_of(model)
    if not layers and isinstance(model, nn.Sequential):
        layers = list(model.children())
    # Layers inside a layer would be collectives too, which another rank's rows may not reach.
    inner = {part for layer in layers for part in layer.modules() if part is not layer}
    tied = {place.layer for places in _ties(model, set(layers) - inner) for place in places}
    return [layer for layer in layers if layer not in inner | tied]


class _Place(NamedTuple):
    """A name of a parameter, and the innermost layer that contains it: the model if none does."""

    name: str
    layer: nn.Module


def _ties(model: nn.Module, layers: set[nn.Module]) -> list[tuple[_Place, _Place]]:
    """Return parameters in several layers: sharded, they would be two, one of them untrained."""
    modules = dict(model.named_modules(remove_duplicate=False))
    first: dict[nn.Parameter, _Place] = {}
    ties = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts = name.split(".")
        parents = (modules[".".join(parts[:depth])] for depth in range(len(parts) - 1, 0, -1))
        place = _Place(name, next((module for module in parents if module in layers), model))
        first_place = first.setdefault(parameter, place)
        if first_place.layer is not place.layer:
            ties.append((first_place, place))
    return ties


def _check_layers(model: nn.Module, layers: list[nn.Module]) -> None:
    for layer in layers:
        if not has_forward(layer):
            what = f"{type(layer).__name__} has no forward, before which it could be gathered"
            fix = "layers=(YourBlock,): the class of the modules in it"
            raise option_invalid(what, where="FSDP(layers=...)", fix=fix)
    ties = _ties(model, set(layers))
    if ties:
        places = ties[0]
        kinds = dict.fromkeys(
            type(place.layer).__name__ for place in places if place.layer is not model
        )
        raise option_contradicted(
            f"{places[0].name} and {places[1].name} are one parameter, and would be gathered"
            " with different layers",
            where="FSDP(layers=...)",
            why="each layer would have its own copy, and train only that",
            fix=f"leave {' and '.join(kinds)} out of layers=",
        )
