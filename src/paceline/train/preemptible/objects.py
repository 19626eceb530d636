"""Sort what a script passes to ``preemptible``: models, optimizers, and others with a state.

The user's own objects are inside the wrappers of torch, Lightning Fabric and Accelerate. Wrappers
are recognised by the attribute that holds what they wrap, so that no framework has to be imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from paceline.errors import UsageError, option_invalid

WHERE = "paceline.preemptible(...)"

# Submodules that hold the wrapped model: of torch.compile, and of Fabric.
_INNER_MODULES = ("_orig_mod", "_original_module")
_INNER_OPTIMIZERS = ("_optimizer", "optimizer")  # of Fabric, of Accelerate
_INNER_LOADERS = ("_dataloader", "base_dataloader")  # of Fabric, of Accelerate
_OLD_SHARDS = "FullyShardedDataParallel"  # its parameters are pieces of flattened layers


def module_of(model: nn.Module) -> nn.Module:
    """Return the user's module inside a model.

    Raises UsageError if the model is sharded by torch's older ``FullyShardedDataParallel``.
    """
    if any(type(part).__name__ == _OLD_SHARDS for part in model.modules()):
        raise option_invalid(
            f"a {_OLD_SHARDS} cannot be saved in parameters of the user's own names",
            where=WHERE,
            fix="torch.distributed.fsdp.fully_shard(model), which has replaced it",
        )
    return _innermost(model)


def _innermost(model: nn.Module) -> nn.Module:
    if isinstance(model, DistributedDataParallel):
        return _innermost(model.module)
    parts = dict(model.named_children())
    inner = next((parts[name] for name in _INNER_MODULES if name in parts), None)
    return model if inner is None else _innermost(inner)


def is_parallel(model: nn.Module) -> bool:
    """Whether a model averages gradients over ranks: it has a DDP, or its parameters are shards."""
    has_ddp = any(isinstance(part, DistributedDataParallel) for part in model.modules())
    return has_ddp or any(hasattr(value, "device_mesh") for value in model.parameters())


def optimizer_of(optimizer: Optimizer) -> Optimizer:
    """Return torch's optimizer inside an optimizer."""
    inner = _first_inner(optimizer, _INNER_OPTIMIZERS)
    return optimizer_of(inner) if isinstance(inner, Optimizer) else optimizer


def loader_of(loader: Any) -> DataLoader[Any] | None:
    """Return the DataLoader inside a loader whose batches each rank reads itself; None without one.

    Accelerate's dispatcher reads on rank 0 and sends parts to the others, which do not use theirs.
    """
    if type(loader).__name__ == "DataLoaderDispatcher":
        return None
    inner = _first_inner(loader, _INNER_LOADERS)
    if inner is not None:
        return loader_of(inner)
    return loader if isinstance(loader, DataLoader) else None


def scalers_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yield the loss scalers that Fabric's and Accelerate's optimizers use, each once."""
    yielded: list[Any] = []
    for optimizer in optimizers:
        attributes = vars(optimizer)
        strategy = attributes.get("_strategy")
        precision = getattr(strategy, "precision", None)
        for scaler in (attributes.get("scaler"), getattr(precision, "scaler", None)):
            if scaler is not None and scaler not in yielded:
                yielded.append(scaler)
                yield scaler


def _first_inner(wrapper: Any, names: Iterable[str]) -> Any:
    # From its own attributes: wrappers pass other names on to what they wrap.
    attributes = getattr(wrapper, "__dict__", {})
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


@dataclass(frozen=True)
class Objects:
    """What a checkpoint holds."""

    models: tuple[nn.Module, ...]  # the user's own modules, without wrappers
    optimizers: tuple[Optimizer, ...]  # torch's optimizers, without wrappers
    # schedulers, loss scalers and others, by the name in the checkpoint
    registered: Mapping[str, Any]
    is_parallel: bool  # whether each model averages its gradients over ranks, or has no gradients

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        parameters = (value for model in self.models for value in model.parameters())
        return next((value.device for value in parameters), torch.device("cpu"))


def sort(objects: Iterable[Any], named: Mapping[str, Any]) -> Objects:
    """Sort objects by their types; others without a name get that of their class.

    None is left out. Raises UsageError if an object has no state, the model or the optimizer is
    missing, or an optimizer has parameters of no model.
    """
    present = [value for value in objects if value is not None]
    models = [value for value in present if isinstance(value, nn.Module)]
    optimizers = [value for value in present if isinstance(value, Optimizer)]
    if not models or not optimizers:
        raise _nothing_to_save("optimizer" if models else "model")
    others = [value for value in present if not isinstance(value, nn.Module | Optimizer)]
    own_models = tuple(map(module_of, models))
    own_optimizers = tuple(map(optimizer_of, optimizers))
    _check_parameters(own_models, own_optimizers)
    trained = [
        model for model in models if any(value.requires_grad for value in model.parameters())
    ]
    return Objects(
        models=own_models,
        optimizers=own_optimizers,
        registered=_registered([*others, *scalers_of(optimizers)], named),
        is_parallel=all(map(is_parallel, trained)),
    )


def _check_parameters(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
    """Check that models have all parameters of the optimizers; a save would fail otherwise."""
    own = {id(parameter) for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        for parameter in (value for group in optimizer.param_groups for value in group["params"]):
            if id(parameter) not in own:
                raise _of_other_model(optimizer, parameter)


def _registered(others: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return objects by their names in a checkpoint, each once."""
    registered = {name: value for name, value in named.items() if value is not None}
    for value in others:
        if not any(value is other for other in registered.values()):
            registered[_free_name(type(value).__name__, registered)] = value
    for name, value in registered.items():
        _check_has_state(name, value)
    return registered


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 1, name
    while free in taken:
        number, free = number + 1, f"{name}.{number}"
    return free


def _check_has_state(name: str, value: Any) -> None:
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return
    is_loader = hasattr(value, "__iter__")
    raise option_invalid(
        f"{name} ({type(value).__name__}) has no state_dict and load_state_dict",
        where=WHERE,
        fix="loader=..., by name" if is_loader else f"leave {name} out, or give it both",
    )


def _of_other_model(optimizer: Optimizer, parameter: torch.Tensor) -> UsageError:
    kind, shape = type(optimizer).__name__, list(parameter.shape)
    return UsageError.of(
        "optimizer-of-other-model",
        f"{kind} has a parameter of shape {shape} that no model has",
        where=WHERE,
        why="a checkpoint names an optimizer's state after the parameters of its models",
        fix="paceline.preemptible(model, other_model, optimizer, loader=loader)",
    )


def _nothing_to_save(what: str) -> UsageError:
    article = "an" if what == "optimizer" else "a"
    return option_invalid(
        f"{what} is missing, and a checkpoint without {article} {what} resumes nothing",
        where=WHERE,
        fix="paceline.preemptible(model, optimizer, scheduler, loader=loader)",
    )
