"""Write a model as its library does: a folder of ``save_pretrained``."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from torch import nn

from paceline.errors import SetupError, UsageError, option_contradicted, option_invalid

_WHERE = "session.export(model, FOLDER)"


def inside(model: nn.Module) -> Any:
    """Return the user's module inside wrappers: DDP, ``torch.compile``, a moving average."""
    module: Any = model
    while not hasattr(module, "save_pretrained"):
        inner = getattr(module, "_orig_mod", getattr(module, "module", None))
        if not isinstance(inner, nn.Module):
            raise _cannot(model)
        module = inner
    return module


def whole_state(module: nn.Module) -> dict[str, Any] | None:
    """Return the whole state of a sharded module, on rank 0; None for one that is not sharded."""
    if not any(hasattr(parameter, "device_mesh") for parameter in module.parameters()):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(module, options=options)
    return state


def save(module: Any, state: dict[str, Any] | None, folder: str | os.PathLike[str]) -> None:
    """Call ``save_pretrained``; ``state`` is the module's whole one, if it is sharded.

    Raises UsageError if the module is sharded, and its method takes no state, SetupError if the
    folder cannot be written.
    """
    options: dict[str, Any] = {}
    if state is not None:
        if "state_dict" not in inspect.signature(module.save_pretrained).parameters:
            raise _takes_no_state(module)
        options["state_dict"] = state
    try:
        os.makedirs(folder, exist_ok=True)
        with torch.no_grad():
            module.save_pretrained(os.fspath(folder), **options)
    except OSError as error:
        raise _not_written(folder, error) from error


def _cannot(model: nn.Module) -> UsageError:
    return option_invalid(
        f"{type(model).__name__} has no save_pretrained",
        where=_WHERE,
        fix="paceline checkpoint export CHECKPOINT model.safetensors",
    )


def _takes_no_state(module: nn.Module) -> UsageError:
    return option_contradicted(
        f"save_pretrained of {type(module).__name__} takes no state_dict, and the module holds"
        " this rank's shards only",
        where=_WHERE,
        fix='Session(strategy="ddp"), or paceline checkpoint export CHECKPOINT FILE',
    )


def _not_written(folder: str | os.PathLike[str], error: OSError) -> SetupError:
    what = f"{os.fspath(folder)} cannot be written"
    fix = "a folder that this user may write"
    return SetupError.of("folder-not-writable", what, where=_WHERE, evidence=(str(error),), fix=fix)
