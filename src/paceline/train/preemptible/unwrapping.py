"""Find the user's own objects inside the wrappers of torch, Lightning Fabric and Accelerate.

Wrappers are recognised by the attribute that holds what they wrap, so that no framework has to be
imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from paceline.errors import option_invalid

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
