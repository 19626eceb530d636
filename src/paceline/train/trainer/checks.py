"""Refuse tasks, data objects and callbacks that rely on methods that the Trainer never calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.errors import UsageError, closest, option_invalid
from paceline.signatures.lightning_names import refused, tables
from paceline.train.trainer.callback import HOOKS, OF_TASK, STAGE_HOOKS, Callback
from paceline.train.trainer.hooks import has_own

# Methods that Lightning calls and this Trainer does not: ignoring them would change the training.
NEVER_CALLED = ("backward", "configure_sharded_model", "optimizer_closure")


def check_task(task: Any, *needed: str) -> None:
    """Refuse a task that cannot be run, or that relies on methods that are never called."""
    name = type(task).__name__
    if task is None:
        raise _misfit(
            "there is no task, and none was fitted before",
            fix="pass the task as the first argument",
        )
    if _from_lightning(type(task)):
        raise _misfit(
            f"{name} derives from Lightning's module, which works with Lightning's Trainer only",
            fix=f"class {name}(paceline.Module)",
        )
    for method in needed:
        if not callable(getattr(task, method, None)):
            raise _method_missing(task, method)
    if hasattr(task, "_orig_mod") or getattr(task, "_compiled_call_impl", None) is not None:
        raise _misfit(
            "the task itself is compiled, and what is trained is its training_step",
            fix="compile the net inside it: self.net = torch.compile(net)",
        )
    _check_hooks(task)


def _method_missing(task: Any, method: str) -> UsageError:
    name = type(task).__name__
    near = closest(method, [other for other in vars(type(task)) if other != "forward"])
    question = f"; is {near} meant to be it?" if near else ""
    arguments = "self, batch, batch_idx" if method.endswith("_step") else "self"
    return _misfit(f"{name} has no {method}{question}", fix=f"def {method}({arguments}): ...")


def _check_hooks(task: Any) -> None:
    """Refuse a task with methods that are meant as hooks and never called."""
    name = type(task).__name__
    never = (*NEVER_CALLED, *tables()["removed hooks"])
    uncalled = [method for method in never if callable(getattr(task, method, None))]
    if uncalled:
        of_lightning = refused("module", uncalled[0]) or refused("removed hooks", uncalled[0])
        raise _misfit(
            f"{name}.{uncalled[0]} would never be called by this Trainer",
            fix=of_lightning.instead if of_lightning else "one of: " + ", ".join(HOOKS),
        )
    hooks = (*HOOKS, *OF_TASK)
    unknown = [method for method in _own_hooks(type(task)) if method not in hooks]
    if unknown:
        near = closest(unknown[0], HOOKS)
        other = "rename the method; the Trainer calls: " + ", ".join(HOOKS)
        raise _misfit(
            f"{name}.{unknown[0]} would never be called by this Trainer",
            fix=f"def {near}(self, ...): ..." if near else other,
        )


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks of Lightning, and callbacks with methods that are never called."""
    for callback in callbacks:
        name = type(callback).__name__
        if _from_lightning(type(callback)):
            raise _misfit(
                f"{name} is a callback for Lightning's Trainer", fix=_callback_instead(callback)
            )
        hooks = [method for method in dir(callback) if method.startswith("on_")]
        hooks += [hook for hook in STAGE_HOOKS if callable(getattr(callback, hook, None))]
        unknown = [hook for hook in hooks if hook not in (*HOOKS, *STAGE_HOOKS)]
        if unknown:
            once = refused("removed hooks", unknown[0])
            near = once.instead if once else closest(unknown[0], HOOKS) or "on_train_epoch_end"
            raise _misfit(
                f"{name}.{unknown[0]} would never be called",
                fix=f"def {near}(self, trainer, task): ...",
            )
        if not any(has_own(callback, hook, base=Callback) for hook in hooks):
            raise _misfit(
                f"{name} has no method that is called",
                fix="def on_train_epoch_end(self, trainer, task): ...",
            )


def _callback_instead(callback: Any) -> str:
    """Return what to write instead of a callback of Lightning, or one that derives from it."""
    name = type(callback).__name__
    if not _is_lightnings(type(callback)):
        base = next(kind.__name__ for kind in type(callback).__mro__ if _is_lightnings(kind))
        return f"from paceline.callbacks import {base}; class {name}({base})"
    of_lightning = refused("callbacks", name)
    return of_lightning.instead if of_lightning else f"from paceline.callbacks import {name}"


def _own_hooks(kind: type) -> list[str]:
    """Return the hook-like methods of a task's class, except those of torch and paceline."""
    own_classes = [
        base
        for base in kind.__mro__
        if base.__module__.partition(".")[0] not in ("builtins", "paceline", "torch")
    ]
    names = sorted(name for base in own_classes for name in vars(base) if name.startswith("on_"))
    return [name for name in names if callable(getattr(kind, name, None))]


def _from_lightning(kind: type) -> bool:
    return any(map(_is_lightnings, kind.__mro__))


def _is_lightnings(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("lightning", "pytorch_lightning")


def _misfit(what: str, *, fix: str) -> UsageError:
    return option_invalid(what, where="Trainer", fix=fix)
