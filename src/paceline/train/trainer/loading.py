"""Make a module from a checkpoint: a folder of paceline, or a file of Lightning's form."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from paceline.errors import UsageError, option_invalid
from paceline.train.checkpoint import load_entries, read_saved

T = TypeVar("T")
HPARAMS = "hyper_parameters"  # Lightning's key, in a file of its form
DATA_HPARAMS = "datamodule_hyper_parameters"
STATE = "state_dict"


def read(
    path: str | os.PathLike[str],
    *,
    map_location: Any = None,  # as for ``torch.load``; the CPU if None
    hparams_file: Any = None,  # refused, unless it is None
    weights_only: bool = True,  # plain data only; otherwise unpickling may run any code
) -> dict[str, Any]:
    """Return the values of a checkpoint under Lightning's keys: weights and hyperparameters.

    ``path`` is the folder of a checkpoint, of checkpoints or of a run; or a file. Raises UsageError
    if there is none, the file holds no ``state_dict``, or it needs classes that are not plain data;
    RunError if it is damaged.
    """
    if hparams_file is not None:
        raise _unusable(
            "hparams_file is given, and hyperparameters are read from the checkpoint only",
            fix="load_from_checkpoint(path, **yaml.safe_load(open(hparams_file)))",
        )
    location = "cpu" if map_location is None else map_location
    with _advising():
        if Path(path).is_file():
            return _of_lightning(
                path, read_saved(Path(path), trust=not weights_only, map_location=location)
            )
        entries = load_entries(Path(path), trust=not weights_only)
    of_loop = entries.objects.get("registered/trainer") or {}
    tensors = {name: value.to(_device(location)) for name, value in entries.tensors.items()}
    return {STATE: tensors, **of_loop.get("checkpoint", {})}


def _device(location: Any) -> Any:
    """Return a ``map_location`` as a device; a function or a dict means the CPU."""
    return location if isinstance(location, str | torch.device | int) else "cpu"


@contextmanager
def _advising() -> Iterator[None]:
    """Let the error for classes that are not plain data name the argument that allows them."""
    try:
        yield
    except UsageError as error:
        if error.finding.name != "checkpoint-needs-classes":
            raise
        fix = "load_from_checkpoint(path, weights_only=False), for a checkpoint that you trust"
        raise UsageError(replace(error.finding, fix=fix)) from error


def _of_lightning(path: str | os.PathLike[str], values: Any) -> dict[str, Any]:
    """Return what a file of Lightning's form holds; refuse one without ``state_dict``."""
    if isinstance(values, Mapping) and STATE in values:
        return dict(values)
    raise _unusable(
        f"{path} holds no state_dict",
        fix='module.load_state_dict(torch.load("weights.pt")) for a file of weights alone',
    )


def make(kind: type[T], values: Mapping[str, Any], given: Mapping[str, Any]) -> T:
    """Return an object of a class, made with a result of ``read``; ``given`` replaces saved
    arguments.

    Raises UsageError if ``__init__`` needs an argument that was neither saved nor given.
    """
    key = HPARAMS if issubclass(kind, nn.Module) else DATA_HPARAMS
    parameters = inspect.signature(kind.__init__).parameters.values()
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    saved = {
        name: value
        for name, value in dict(values.get(key) or {}).items()
        if takes_all or name in names
    }
    # A class that has lost an argument since loads all the same; what is given by hand wins.
    arguments = {**saved, **given}
    missing = [
        parameter.name
        for parameter in list(parameters)[1:]
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.name not in arguments
    ]
    if missing:
        raise _unusable(
            f"{kind.__name__} needs {', '.join(missing)}, which the checkpoint does not hold",
            fix=f"{kind.__name__}.load_from_checkpoint(path, {missing[0]}=...), or"
            " self.save_hyperparameters() in __init__ before training",
        )
    return kind(**arguments)


def fill(module: nn.Module, values: Mapping[str, Any], *, strict: bool) -> None:
    """Load the weights of a checkpoint into a module."""
    hook = getattr(module, "on_load_checkpoint", None)
    if callable(hook):
        hook(dict(values))
    try:
        module.load_state_dict(values[STATE], strict=strict)
    except RuntimeError as error:
        # The first line names the class; hundreds may follow, one for each key.
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise UsageError.of(
            "checkpoint-other-model",
            f"the weights of the checkpoint do not fit {type(module).__name__}",
            where="load_from_checkpoint(...)",
            evidence=tuple(line[:200] for line in lines),
            fix="the arguments with which the model was made, or strict=False",
        ) from error


def _unusable(what: str, *, fix: str) -> UsageError:
    return option_invalid(what, where="load_from_checkpoint(...)", fix=fix)
