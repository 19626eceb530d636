"""Decide whether a session accepts what a script passes to it: models, optimizers, losses, options.

Pure: each function raises the error for what it refuses, or returns.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.errors import UsageError, closest, option_contradicted, option_invalid
from paceline.machine.parameters import held_by
from paceline.train.model import wrapping


def check_is_plain(model: nn.Module) -> None:
    """Refuse a model that is parallel already, also one that ``setup`` returned."""
    if isinstance(model, DistributedDataParallel):
        raise option_contradicted(
            "the model is a DistributedDataParallel already",
            where="session.setup(model)",
            fix="session.setup(model.module)",
        )


def check_is_set_up(model: Any, models: list[nn.Module], *, where: str) -> None:
    """Refuse a model that ``setup`` has not seen."""
    if any(model is other for other in models):
        return
    raise option_invalid(
        f"a {type(model).__name__} that was not set up",
        where=where,
        fix="model, optimizer = session.setup(model, optimizer) before",
    )


def which_model(count: int, *, where: str) -> UsageError:
    """Return the error for a call that needs a model, where several or none were set up."""
    what = f"{count} models were set up, and none is named" if count else "no model was set up"
    fix = "model, optimizer = session.setup(model, optimizer), then session.load(FILE, model)"
    return option_invalid(what, where=where, fix=fix)


def check_kinds(model: Any, optimizers: tuple[Any, ...]) -> None:
    """Refuse a model or an optimizer that is something else."""
    misfits = [value for value in optimizers if not isinstance(value, Optimizer)]
    if isinstance(model, nn.Module) and not misfits:
        return
    misfit, role = (misfits[0], "an optimizer") if misfits else (model, "the model")
    if isinstance(misfit, type):
        what = f"a {misfit.__name__} that was not called"
    else:
        what = f"a {type(misfit).__name__}"
    raise option_invalid(
        f"session.setup got {what} as {role}",
        where="session.setup(model, optimizer)",
        fix=(
            "session.setup(model, torch.optim.AdamW(model.parameters())); a scheduler goes to"
            " session.register"
        ),
    )


def require_loss(loss: Any) -> None:
    """Refuse what backward cannot start from.

    Raises UsageError if the loss is not a tensor or not one number, or no parameter has a gradient.
    """
    if not isinstance(loss, torch.Tensor):
        raise _not_a_tensor(loss)
    if loss.numel() != 1:
        raise _not_a_scalar(loss)
    if not loss.requires_grad:
        raise _without_graph(loss, is_recording=torch.is_grad_enabled())


def _not_a_tensor(loss: Any) -> UsageError:
    """Return the error for a loss that is not a tensor, such as a float or a model's output."""
    fix = "session.backward(loss) before loss.item(); the loss as it was computed"
    if isinstance(getattr(loss, "loss", None), torch.Tensor):
        fix = "session.backward(output.loss)"
    return option_invalid(
        f"the loss is of type {type(loss).__name__}, and a tensor is needed",
        where="session.backward(loss)",
        fix=fix,
    )


def _not_a_scalar(loss: torch.Tensor) -> UsageError:
    """Return the error for a loss that is not one number."""
    return option_invalid(
        f"the loss has shape {list(loss.shape)}, and one number is needed",
        where="session.backward(loss)",
        fix="session.backward(loss.mean())",
    )


def _without_graph(loss: torch.Tensor, *, is_recording: bool) -> UsageError:
    """Return the error for a loss that no parameter has a gradient of."""
    if not is_recording:
        reason, fix = "it is computed under torch.no_grad()", "leave torch.no_grad() before"
    else:
        reason = "it is detached from the model, or no parameter of the model is trained"
        fix = (
            "compute it from the model's output without .detach(), .item(), .data or argmax; some"
            " parameter needs requires_grad=True"
        )
    return option_invalid(
        f"the loss ({loss.dtype}) has no gradient: {reason}",
        where="session.backward(loss)",
        fix=fix,
    )


def check_accumulate(accumulate: int) -> None:
    """Refuse a value that is not a positive number of batches."""
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise option_invalid(
            f"accumulate={accumulate!r} is not a positive int",
            where="Session(accumulate=...)",
            fix="Session(accumulate=4): gradients of four batches make one step",
        )


def inside_a_loop() -> UsageError:
    """Return the error for another number of accumulated batches in the middle of them."""
    return option_contradicted(
        "accumulate changes inside a loop over training batches",
        where="session.accumulate",
        why="the batches of a loop are divided into steps when it begins",
        fix="session.accumulate = 4 before the loop over the loader, for example in each epoch",
    )


def check_names(kind: type, options: Mapping[str, object]) -> None:
    """Refuse options that a class does not have."""
    parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [parameter.name for parameter in parameters][1:]
    unknown = [name for name in options if name not in names]
    if not unknown:
        return
    near = closest(unknown[0], names)
    value = options[unknown[0]]
    raise UsageError.of(
        "option-unknown",
        f"{kind.__name__} has no option {unknown[0]}",
        where=f"{kind.__name__}({unknown[0]}={value!r})",
        fix=f"{kind.__name__}({near}={value!r})" if near else f"one of {', '.join(names)}",
    )


def check_frozen(frozen: Mapping[nn.Parameter, str]) -> None:
    """Refuse trained parameters, by name, that were frozen when their model was made parallel."""
    trained = [name for parameter, name in frozen.items() if parameter.requires_grad]
    if trained:
        raise UsageError.of(
            "gradients-not-averaged",
            f"{len(trained)} parameters were frozen at session.setup and are trained now,"
            f" {trained[0]} first",
            where="requires_grad after session.setup(model)",
            why=(
                "only what was trained at session.setup is averaged; ranks would silently"
                " drift apart"
            ),
            fix=(
                "freeze after session.setup with DDP(find_unused_parameters=True), or make"
                " the model again and set it up"
            ),
        )


def check_parameters(
    optimizer: Optimizer, known: Collection[nn.Parameter], model: nn.Module
) -> None:
    """Refuse an optimizer of other parameters than those of models that were set up."""
    held = set(held_by(optimizer))
    foreign = held - set(known)
    if not foreign:
        return
    kind = type(optimizer).__name__
    if error := wrapping.made_too_early(kind, foreign, model):
        raise error
    raise UsageError.of(
        "optimizer-of-other-model",
        f"{len(foreign)} of the {len(held)} parameters of {kind} are not the model's",
        where="session.setup(model, optimizer)",
        why="its steps would leave the model as it is",
        fix=f"{kind}(model.parameters(), ...) just before session.setup",
    )
