"""Call the hooks of a task and of callbacks, and refuse hooks that the Trainer never calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.errors import Finding, UsageError, closest


class Callback(Protocol):
    """Any object with some of these methods; deriving from this class is not needed.

    A task may have the same methods, without the first two arguments; they are called before the
    callbacks' methods. Methods are looked up once, when ``fit``, ``validate`` or ``test`` begins,
    and a missing one costs nothing.
    """

    def on_fit_start(self, trainer: Any, task: Any) -> None:
        """Called before a checkpoint is restored."""

    def on_train_start(self, trainer: Any, task: Any) -> None:
        """Called before the first epoch of this process, after a checkpoint was restored."""

    def on_train_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before the first batch of an epoch."""

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, batch_idx: int) -> None:
        """Called before each batch."""

    def on_after_backward(self, trainer: Any, task: Any) -> None:
        """Called after each backward; gradients are unscaled, and reduced if the group ends."""

    def on_before_optimizer_step(self, trainer: Any, task: Any, optimizer: Any) -> None:
        """Called before each step of each optimizer, before gradients are clipped."""

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after each batch; ``outputs`` is the result of ``training_step``."""

    def on_validation_start(self, trainer: Any, task: Any) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before a validation, after ``on_validation_start``."""

    def on_validation_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after the last batch of a validation; numbers logged here belong to it."""

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        """Called after a validation, when its means are in ``trainer.callback_metrics``."""

    def on_train_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after an epoch and its validation; numbers logged here belong to it."""

    def on_train_end(self, trainer: Any, task: Any) -> None:
        """Called after the last epoch."""

    def on_fit_end(self, trainer: Any, task: Any) -> None:
        """Called at the end of ``fit``."""

    def on_test_start(self, trainer: Any, task: Any) -> None:
        """Called before a test."""

    def on_test_epoch_start(self, trainer: Any, task: Any) -> None:
        """Called before a test, after ``on_test_start``."""

    def on_test_epoch_end(self, trainer: Any, task: Any) -> None:
        """Called after the last batch of a test; numbers logged here belong to it."""

    def on_test_end(self, trainer: Any, task: Any) -> None:
        """Called after a test, when its means are in ``trainer.callback_metrics``."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))

# Methods that Lightning calls and this Trainer does not: ignoring them would change the training.
NEVER_CALLED = frozenset(
    [
        "backward",
        "configure_callbacks",
        "configure_gradient_clipping",
        "configure_model",
        "lr_scheduler_step",
        "manual_backward",
        "on_after_batch_transfer",
        "on_before_backward",
        "on_before_batch_transfer",
        "on_before_zero_grad",
        "on_load_checkpoint",
        "on_save_checkpoint",
        "on_test_batch_end",
        "on_test_batch_start",
        "on_validation_batch_end",
        "on_validation_batch_start",
        "optimizer_step",
        "optimizer_zero_grad",
        "test_epoch_end",
        "training_epoch_end",
        "training_step_end",
        "transfer_batch_to_device",
        "validation_epoch_end",
        "validation_step_end",
    ]
)

# The same for a data object, where Lightning looks for these too.
NEVER_CALLED_ON_DATA = (
    "on_after_batch_transfer",
    "on_before_batch_transfer",
    "transfer_batch_to_device",
)

# Lightning's callbacks need Lightning's Trainer; these have a counterpart here.
INSTEAD = {
    "EarlyStopping": 'Trainer(monitor="val_loss", mode="min", patience=3)',
    "ModelCheckpoint": 'Trainer(monitor="val_loss", mode="min", save_top_k=1)',
    "LearningRateMonitor": (
        'self.log("lr", self.optimizers().param_groups[0]["lr"]) in training_step'
    ),
    "TQDMProgressBar": "Trainer(enable_progress_bar=True)",
    "RichProgressBar": "Trainer(enable_progress_bar=True)",
}


class Hooks:
    """The methods to call at each moment: the task's first, then the callbacks' in their order."""

    def __init__(self, trainer: Any, task: Any, callbacks: Sequence[Any]) -> None:
        self._front = (trainer, task)
        self._of_task = {
            name: getattr(task, name) for name in HOOKS if callable(getattr(task, name, None))
        }
        self._of_callbacks = {
            name: [getattr(callback, name) for callback in callbacks if _has_own(callback, name)]
            for name in HOOKS
        }

    def call(self, name: str, *args: Any) -> None:
        """Call the task's method and the callbacks'."""
        self.call_task(name, *args)
        self.call_callbacks(name, *args)

    def call_task(self, name: str, *args: Any) -> None:
        """Call the task's method."""
        if name in self._of_task:
            self._of_task[name](*args)

    def call_callbacks(self, name: str, *args: Any) -> None:
        """Call the callbacks' methods."""
        for method in self._of_callbacks[name]:
            method(*self._front, *args)

    def caller(self, name: str) -> Callable[..., None] | None:
        """Return a function equivalent to ``call``, or None if there is nothing to call."""
        if name not in self._of_task and not self._of_callbacks[name]:
            return None
        return lambda *args: self.call(name, *args)


def check_task(task: Any, *needed: str) -> None:
    """Refuse a task that cannot be run, or that relies on methods that are never called.

    Raises:
        UsageError: There is no task, it lacks a method, or a method of it would never be called.
    """
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
    if getattr(task, "automatic_optimization", True) is False:
        raise _misfit(
            f"{name} sets automatic_optimization=False, which this Trainer does not support",
            fix="write the loop with paceline.Session: it is as short",
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
    uncalled = sorted(method for method in NEVER_CALLED if callable(getattr(task, method, None)))
    if uncalled:
        raise _misfit(
            f"{name}.{uncalled[0]} would never be called by this Trainer",
            fix="write the loop with paceline.Session, or use one of: " + ", ".join(HOOKS),
        )
    unknown = [method for method in _own_hooks(type(task)) if method not in HOOKS]
    if unknown:
        near = closest(unknown[0], HOOKS)
        other = "rename the method; the Trainer calls: " + ", ".join(HOOKS)
        raise _misfit(
            f"{name}.{unknown[0]} would never be called by this Trainer",
            fix=f"def {near}(self, ...): ..." if near else other,
        )


def check_data(data: Any) -> None:
    """Refuse a data object that relies on methods that are never called.

    Raises:
        UsageError: A method would never be called.
    """
    for name in NEVER_CALLED_ON_DATA:
        owner = next((base for base in type(data).__mro__ if name in vars(base)), None)
        if callable(getattr(data, name, None)) and not (owner and _is_lightnings(owner)):
            raise _misfit(
                f"{type(data).__name__}.{name} would never be called by this Trainer",
                fix=(
                    "change samples in the dataset or in collate_fn, and batches in training_step,"
                    " on the device"
                ),
            )


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks of Lightning, and callbacks with methods that are never called.

    Raises:
        UsageError: A callback is Lightning's, or a method of it would never be called.
    """
    for callback in callbacks:
        name = type(callback).__name__
        if _from_lightning(type(callback)):
            raise _misfit(
                f"{name} is a callback for Lightning's Trainer",
                fix=INSTEAD.get(
                    name,
                    "a class without a base, with the methods that are needed: on_...(trainer,"
                    " task)",
                ),
            )
        hooks = [method for method in dir(callback) if method.startswith("on_")]
        unknown = [hook for hook in hooks if hook not in HOOKS]
        if unknown:
            near = closest(unknown[0], HOOKS) or "on_train_epoch_end"
            raise _misfit(
                f"{name}.{unknown[0]} would never be called",
                fix=f"def {near}(self, trainer, task): ...",
            )
        if not hooks:
            raise _misfit(
                f"{name} has no method that is called",
                fix="def on_train_epoch_end(self, trainer, task): ...",
            )


def _has_own(callback: Any, name: str) -> bool:
    is_inherited = getattr(type(callback), name, None) is getattr(Callback, name)
    return callable(getattr(callback, name, None)) and not is_inherited


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
    return UsageError(Finding("option-invalid", what, where="Trainer", fix=fix))
